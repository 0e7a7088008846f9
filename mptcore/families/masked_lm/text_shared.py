"""Masks that texts of a group share.

A text with as many tokens as the first text of its group has the same masks. The scores of both
then vary together, and the error of their difference is far smaller than those of the scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import counted_from, repeated
from mptcore.families.masked_lm.masked_batch import MaskedBatch
from mptcore.families.masked_lm.text_rounds import Rounds


def owners_of(groups: Sequence[Sequence[int]], sizes: Tensor) -> Tensor:
    """Return whose masks each text with sizes[i] tokens has, (N,): its own, or those of the first
    text of its group."""
    owners = torch.arange(len(sizes))
    for first, *others in groups:
        rest = torch.tensor(others)
        owners[rest[sizes[rest] == sizes[first]]] = first
    return owners


@dataclass(frozen=True)
class Shared:
    """Which of n texts have the masks of an earlier one. Estimates have n entries for the texts,
    and one for the difference of each such text to the owner of its masks."""

    owners: Tensor  # (n,), a text without shared masks is its own

    @cached_property
    def members(self) -> Tensor:
        """The texts that have the masks of another, (k,)."""
        return (self.owners != torch.arange(len(self.owners))).nonzero().flatten()

    @cached_property
    def entries(self) -> Tensor:
        """The entry of each text's difference, (n,); only for members."""
        entries = torch.zeros_like(self.owners)
        entries[self.members] = len(self.owners) + torch.arange(len(self.members))
        return entries

    def with_differences(self, values: Tensor) -> Tensor:
        """Return values of the texts' masks (n, B) with their differences: (n + k, B)."""
        return torch.cat([values, values[self.members] - values[self.owners[self.members]]])

    def planned(self, estimates: Rounds, target: Tensor, most: int) -> Tensor:
        """Return the plan of the next round (2, n + k). Texts with the same masks have the largest
        of their plans."""
        planned = estimates.planned(target, most)
        owners = torch.cat([self.owners, self.owners[self.members]]).expand_as(planned)
        found = torch.zeros_like(planned).scatter_reduce(1, owners, planned, "amax")
        return found.gather(1, owners)

    def masks(self, owned: MaskedBatch) -> MaskedBatch:
        """Return masks of owners, text by text, with the same masks of the members of each after
        them."""
        if len(self.members) == 0:
            return owned
        corpus = owned.corpus
        own, counts = torch.unique_consecutive(owned.sequences, return_counts=True)
        starts, number = (torch.zeros_like(self.owners) for _ in "ab")
        starts[own], number[own] = counts.cumsum(0) - counts, counts
        texts = number[self.owners].nonzero().flatten()
        number = number[self.owners[texts]]
        found = owned[counted_from(starts[self.owners[texts]], number)]
        sequences = repeated(texts, number)
        apart = corpus.first_free[sequences] - corpus.first_free[found.sequences]
        places = corpus.free[found.tokens + repeated(apart, found.counts)]
        return replace(found, sequences=sequences, places=places)

    def differences(self, sequences: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries and values of the differences of masks of these texts (B,), which come
        text by text."""
        texts, counts = torch.unique_consecutive(sequences, return_counts=True)
        starts = torch.zeros_like(self.owners)
        starts[texts] = counts.cumsum(0) - counts
        owners = self.owners[sequences]
        rows = (owners != sequences).nonzero().flatten()
        other = rows + (starts[owners] - starts[sequences])[rows]
        return self.entries[sequences[rows]], values[rows] - values[other]

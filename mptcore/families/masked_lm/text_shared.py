"""Masks that texts of a group share.

A text with as many tokens as the first text of its group has the same masks. The scores of both
then vary together, and the error of their difference is far smaller than those of the scores.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import counted_from, repeated
from mptcore.families.masked_lm.masked_batch import MaskedBatch
from mptcore.families.masked_lm.text_rounds import Rounds

REACH, DOUBT = 3.0, 0.5
"""A decision gets masks for a standard error of 1/REACH of the difference of the two best texts,
taken to be smaller by DOUBT of its standard errors so far."""
LEAST_VARIANCE = 1 / 16
"""Smallest variance of a difference, as a fraction of that of independent masks. Two texts may
differ in few contexts only, and the masks so far may have none of them."""


def owners_of(groups: Sequence[Sequence[int]], sizes: Tensor, most: int) -> Tensor:
    """Return whose masks each text with sizes[i] tokens has, (N,): its own, or those of the first
    text of its group. Texts with the same masks have at most `most` tokens in all, because they are
    scored together."""
    owners = torch.arange(len(sizes))
    for first, *others in groups:
        rest = torch.tensor(others)
        alike = rest[sizes[rest] == sizes[first]]
        owners[alike[: max(0, most // int(sizes[first]) - 1)]] = first
    return owners


def homes_of(groups: Sequence[Sequence[int]], sizes: Tensor, most: int, owners: Tensor) -> Tensor:
    """Return the text after which each text is scored, (N,): the first of its group, if all texts
    of the group have sizes above 0 and at most `most` tokens in all, else the owner of its
    masks."""
    homes = owners.clone()
    for group in groups:
        of_group = sizes[torch.tensor(group)]
        if of_group.min() > 0 and of_group.sum() <= most:
            homes[torch.tensor(group)] = group[0]
    return homes


@dataclass(frozen=True)
class Shared:
    """Which of n texts have the masks of an earlier one. Estimates have n entries for the texts,
    and one for the difference of each such text to the owner of its masks."""

    owners: Tensor  # (n,), a text without shared masks is its own
    homes: Tensor  # (n,), the first text of the group, or the owner

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

    def cautious(self, estimates: Rounds) -> Rounds:
        """Return estimates in which no variance of a difference is below the least one."""
        own, differences = estimates.squares.tensor_split([len(self.owners)])
        independent = own[self.members] + own[self.owners[self.members]]
        differences = torch.maximum(differences, LEAST_VARIANCE * independent)
        return replace(estimates, squares=torch.cat([own, differences]))

    def planned(self, estimates: Rounds, target: Tensor, most: int, decides: bool) -> Tensor:
        """Return the plan of the next round (2, n + k) for target errors of the texts (n,), or of
        the differences in a decision. A group is decided by a last round that suffices for the
        lead of its best text. Until one that at most doubles its masks does, the plan is that for
        the target, so that the weights of these rounds remain small."""
        estimates = self.cautious(estimates)
        if not decides:
            none = torch.full((len(self.members),), math.inf, dtype=target.dtype)
            return self._alike(estimates.planned(torch.cat([target, none]), most))
        plan = self._alike(estimates.planned(self._of_differences(target), most))
        by_lead = torch.maximum(self._leads(estimates) / REACH, target)
        last = self._alike(estimates.planned(self._of_differences(by_lead), most))[1]
        suffices = (last <= estimates.count) & (last < plan[1])
        return torch.where(suffices, last, plan)

    def _alike(self, planned: Tensor) -> Tensor:
        """Return the largest of the plans (2, n + k) of texts with the same masks, for all of
        them."""
        owners = torch.cat([self.owners, self.owners[self.members]]).expand_as(planned)
        found = torch.zeros_like(planned).scatter_reduce(1, owners, planned, "amax")
        return found.gather(1, owners)

    def _of_differences(self, target: Tensor) -> Tensor:
        """Return target errors of the entries (n + k,), so that differences of the texts of a group
        have those of its first text (n,)."""
        count = len(self.owners)
        texts = torch.bincount(self.homes, minlength=count)[self.homes]
        of_group = target[self.homes]
        has_own = torch.bincount(self.homes, self._has_own.double(), minlength=count) > 0
        of_texts = torch.where(has_own[self.homes], of_group / math.sqrt(2), math.inf)
        # the error of a difference between two texts other than the first is at most the sum
        of_members = (of_group / torch.where(texts == 2, 1, 2))[self.members]
        return torch.cat([torch.where(texts == 1, target, of_texts), of_members])

    @cached_property
    def _has_own(self) -> Tensor:
        """Mark the texts whose masks no other text has, (n,)."""
        return torch.bincount(self.owners, minlength=len(self.owners))[self.owners] == 1

    def _leads(self, estimates: Rounds) -> Tensor:
        """Return how far the best text of each group leads, at least, by its first text, (n,). The
        others are 0."""
        averages = estimates.average[: len(self.owners)]
        by_value = averages.argsort(descending=True, stable=True)
        order = by_value[self.homes[by_value].argsort(stable=True)]
        homes, counts = torch.unique_consecutive(self.homes[order], return_counts=True)
        places = (counts.cumsum(0) - counts)[counts > 1]
        best, second = order[places], order[places + 1]
        squares = estimates.variance / estimates.count
        apart = torch.where(self.entries > 0, squares[self.entries], 0).sqrt()
        shared = ~(self._has_own[best] | self._has_own[second])
        independent = (squares[best] + squares[second]).sqrt()
        errors = torch.where(shared, apart[best] + apart[second], independent)
        leads = torch.zeros_like(averages)
        leads[homes[counts > 1]] = averages[best] - averages[second] - DOUBT * errors
        return leads

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

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

REACH, DOUBT = 4.0, 0.5
"""A decision gets masks for a standard error of 1/REACH of the difference of each text to the best
of its group, taken to be smaller by DOUBT of its standard errors so far."""
UNSEEN, LEAST_VARIANCE = 16, 1 / 16
"""Smallest variance of a difference after n masks, as a fraction of that of independent masks:
UNSEEN / n, at most 1 and at least LEAST_VARIANCE. Two texts may differ in few contexts only, and
few masks may have none of them."""


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


def homes_of(groups: Sequence[Sequence[int]], sizes: Tensor, most: int) -> Tensor:
    """Return the text after which each text is scored and with which it is compared, (N,): the
    first of its group, if all texts of the group have sizes above 0 and at most `most` tokens in
    all, else itself."""
    homes = torch.arange(len(sizes))
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
    homes: Tensor  # (n,), the first text of the group; itself if it is not compared

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
        """Return estimates in which no variance of a difference is below the least one, but for
        equal texts."""
        own, differences = estimates.squares.tensor_split([len(self.owners)])
        independent = own[self.members] + own[self.owners[self.members]]
        least = (UNSEEN / estimates.count[len(self.owners) :]).clamp(LEAST_VARIANCE, 1)
        least = torch.where(differences > 0, least, 0) * independent
        squares = torch.cat([own, torch.maximum(differences, least)])
        return replace(estimates, squares=squares)

    def planned(self, estimates: Rounds, target: Tensor, most: int, decides: bool) -> Tensor:
        """Return the plan of the next round (2, n + k) for target errors of the texts (n,), or of
        their differences to the best text of the group in a decision. A group is decided by a last
        round that suffices for the lead of its best text. Until one that at most doubles its masks
        does, the plan for the two best texts is that for the target, so that the weights of these
        rounds remain small."""
        estimates = self.cautious(estimates)
        if not decides:
            none = torch.full((len(self.members),), math.inf, dtype=target.dtype)
            return self._alike(estimates.planned(torch.cat([target, none]), most))
        best, second = self._best_two(estimates)
        by_lead = torch.maximum(self._leads(estimates, best) / REACH, target)
        to_target = torch.where(torch.arange(len(best)) == second, target, by_lead)
        plan, last = (
            self._alike(estimates.planned(self._of_entries(errors, best), most))
            for errors in (to_target, by_lead)
        )
        # the texts of a group end together
        is_long = (last[1] > estimates.count)[: len(best)]
        waits = torch.zeros_like(is_long).scatter_reduce(0, self.homes, is_long, "amax")
        owners = torch.cat([self.owners, self.owners[self.members]])
        suffices = ~waits[self.homes[owners]] & (last[1] < plan[1])
        return torch.where(suffices, last[1], plan)

    def _alike(self, planned: Tensor) -> Tensor:
        """Return the largest of the plans (2, n + k) of texts with the same masks, for all of
        them."""
        owners = torch.cat([self.owners, self.owners[self.members]]).expand_as(planned)
        found = torch.zeros_like(planned).scatter_reduce(1, owners, planned, "amax")
        return found.gather(1, owners)

    def _best_two(self, estimates: Rounds) -> tuple[Tensor, Tensor]:
        """Return the best and the second text of each text's group so far, both (n,); the text
        itself if it is not compared."""
        by_value = estimates.average[: len(self.owners)].argsort(descending=True, stable=True)
        order = by_value[self.homes[by_value].argsort(stable=True)]
        homes, counts = torch.unique_consecutive(self.homes[order], return_counts=True)
        places = counts.cumsum(0) - counts
        best, second = torch.zeros_like(order), torch.zeros_like(order)
        best[homes] = order[places]
        second[homes] = order[places + (counts > 1)]
        return best[self.homes], second[self.homes]

    def _leads(self, estimates: Rounds, best: Tensor) -> Tensor:
        """Return by how much, at least, each text (n,) is behind the best of its group."""
        averages = estimates.average[: len(best)]
        squares = estimates.variance / estimates.count
        apart = torch.where(self.entries > 0, squares[self.entries], 0).sqrt()
        independent = (squares[: len(best)] + squares[best]).sqrt()
        errors = torch.where(self._share_masks(best), apart + apart[best], independent)
        return averages[best] - averages - DOUBT * errors

    def _of_entries(self, targets: Tensor, best: Tensor) -> Tensor:
        """Return target errors of the entries (n + k,), so that the differences of the texts to the
        best of their group have these target errors (n,). A text that is not compared has its own
        target."""
        texts, count = torch.arange(len(best)), len(best) + len(self.members)
        shared, is_best = self._share_masks(best), texts == best
        # the error of a difference between two members is at most the sum of theirs to the owner
        members = (self.entries > 0).long() + (self.entries[best] > 0).long()
        parts = torch.where(shared, targets / members.clamp(min=1), targets / math.sqrt(2))
        alone = torch.bincount(self.homes, minlength=len(best))[self.homes] == 1
        parts = torch.where(alone, targets, torch.where(is_best, math.inf, parts))
        found = torch.full((count + 1,), math.inf, dtype=targets.dtype)
        for one in (texts, best):
            entries = torch.where(self.entries[one] > 0, self.entries[one], count)
            places = torch.where(shared & ~alone, entries, one)
            found = found.scatter_reduce(0, places, parts, "amin")
        return found[:count]

    def _share_masks(self, best: Tensor) -> Tensor:
        """Mark the texts that have the masks of the best text of their group, (n,)."""
        return self.owners == self.owners[best]

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

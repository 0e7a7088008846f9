"""Texts that belong together: their differences and order, and metrics over groups."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mptcore.families.masked_lm.estimates import MaskErrors
from mptcore.protocol.records import Labels, Metric, Record
from mptcore.stats import centred_share, mean_ranks

Z_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


class Member(NamedTuple):
    """A text of a group with its score; None if it has none."""

    row: int
    """-1 for a text that was not chosen."""
    value: float | None
    std_err: float
    mask_errors: MaskErrors | None = None


@dataclass(frozen=True)
class Place:
    """A text's place in its group."""

    row: int
    difference: float | None = None
    """Score minus that of the first text of the group."""
    difference_std_err: float | None = None
    rank: int | None = None
    """1 for the highest score."""
    decided: bool | None = None
    """True if the best text of the group is the best at 95 %."""
    reason: str | None = None


def ranked(members: Sequence[Member]) -> Iterator[Place]:
    """Yield the place of each member."""
    if (reason := _reason(members)) is not None:
        yield from (Place(one.row, reason=reason) for one in members)
        return
    decided, first = is_decided(members), members[0]
    rising = sorted(map(_value, members))
    for one in members:
        own = one is first
        yield Place(
            one.row,
            0.0 if own else _value(one) - _value(first),
            0.0 if own else _apart_std_err(one, first),
            1 + len(rising) - bisect_right(rising, _value(one)),
            decided,
        )


def _reason(members: Sequence[Member]) -> str | None:
    """Return why a group has no order, if it has none."""
    if len(members) == 1:
        return "its group has no other text"
    if any(one.value is None and one.row >= 0 for one in members):
        return "a text of its group has no score"
    if any(one.value is None for one in members):
        return "a text of its group is not among the n chosen ones"
    return None


def is_whole(members: Sequence[Member]) -> bool:
    """Return whether a group has an order: two texts or more, all of which have a score."""
    return _reason(members) is None


def _value(member: Member) -> float:
    assert member.value is not None
    return member.value


def _apart_std_err(one: Member, other: Member) -> float:
    """Return the standard error of the difference of two scores."""
    first, second = one.mask_errors, other.mask_errors
    if first is not None and second is not None and first.stream == second.stream:
        return first.std_err_of_difference(second)
    return math.hypot(one.std_err, other.std_err)


def is_decided(members: Sequence[Member]) -> bool:
    """Return whether the best member is better than each other at 95 %."""
    if any(one.value is None for one in members):
        return False
    best = max(members, key=_value)
    return all(
        _value(best) - _value(other) > Z_95 * _apart_std_err(best, other)
        for other in members
        if other is not best
    )


def accuracy(groups: Sequence[Sequence[Member]], labels: Labels) -> Iterator[Record]:
    """Yield the share of groups whose first text has the highest score, and the number of decided
    groups."""
    whole = [*filter(is_whole, groups)]
    yield Metric("groups_scored", len(whole), 0.0, labels)
    yield Metric("groups_left_out", len(groups) - len(whole), 0.0, labels)
    yield _share_right("accuracy", whole, labels)
    if whole:
        yield Metric("groups_decided", sum(map(is_decided, whole)), 0.0, labels)


def accuracy_by_category(
    groups: Mapping[str, Sequence[Sequence[Member]]], labels: Labels
) -> Iterator[Record]:
    """Yield the share of each category's groups whose first text has the highest score."""
    for category, of_category in sorted(groups.items()):
        whole = [*filter(is_whole, of_category)]
        yield _share_right("accuracy_by_category", whole, {**labels, "category": category})


def _share_right(name: str, groups: Sequence[Sequence[Member]], labels: Labels) -> Metric:
    """Return the share of groups whose first text has the highest score. A tie is an error. The
    standard error is never 0."""
    if not groups:
        return Metric(name, None, None, labels, "no group has two texts with scores")
    right = sum(all(_value(one[0]) > _value(other) for other in one[1:]) for one in groups)
    _, std_err = centred_share(right, len(groups))
    return Metric(name, right / len(groups), std_err, labels)


def rank_correlation(
    values: Sequence[float], labels_of: Sequence[float | None], labels: Labels
) -> Metric:
    """Return Spearman's rank correlation of scores with labels. Its error is that of Bonett and
    Wright (2000), by the delta method."""
    pairs = [
        (value, label)
        for value, label in zip(values, labels_of, strict=True)
        if label is not None and math.isfinite(value)
    ]
    name = "spearman"
    if len(pairs) < 4:
        return Metric(name, None, None, labels, "fewer than four texts have a score and a label")
    first, second = (np.array(mean_ranks(column)) for column in zip(*pairs, strict=True))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return Metric(name, None, None, labels, "all scores or all labels are equal")
    first, second = first - first.mean(), second - second.mean()
    found = float(first @ second / math.sqrt((first @ first) * (second @ second)))
    std_err = (1 - found**2) * math.sqrt((1 + found**2 / 2) / (len(pairs) - 3))
    return Metric(name, found, std_err, labels)

"""The table of scores of texts: a line of JSON for each text, the order of texts in their groups,
and metrics over texts and groups."""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mptcore.estimation.estimate import Estimate
from mptcore.families.masked_lm.estimates import (
    MaskErrors,
    Noise,
    Report,
    finite_mean,
    per_token,
    population_mean,
)
from mptcore.families.masked_lm.text_rows import MAX_GROUP, TextRow, Texts
from mptcore.protocol.records import Labels, Log, Metric, Record
from mptcore.runtime.artifacts import keep
from mptcore.specs import OF_MUTATIONS, TextScore, TextScores
from mptcore.stats import centred_share, mean_ranks

FILE = "texts.jsonl"
MEDIA_TYPE = "application/jsonl"
NO_GROUP = f"it has no group, or one whose name has more than {MAX_GROUP} characters"
MAX_NAMED = 10
"""Maximum number of groups that a warning names."""
MAX_SHOWN = 20_000
"""Maximum number of characters of a text in the table; `characters` counts all."""
MAX_TOKEN_SHOWN = 50
"""Maximum number of characters of a token in the table; `start` and `end` bound all."""
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
class RankedText:
    """A text with its rank in its group."""

    row: int
    difference: float | None = None
    """Score minus that of the first text of the group."""
    difference_std_err: float | None = None
    rank: int | None = None
    """1 for the highest score."""
    decided: bool | None = None
    """True if the best text of the group is the best at 95 %."""
    reason: str | None = None


def ranked(members: Sequence[Member]) -> Iterator[RankedText]:
    """Yield the members of a group with their ranks."""
    if (reason := _reason(members)) is not None:
        yield from (RankedText(member.row, reason=reason) for member in members)
        return
    decided, first = is_decided(members), members[0]
    rising = sorted(map(_value, members))
    for member in members:
        is_first = member is first
        yield RankedText(
            member.row,
            0.0 if is_first else _value(member) - _value(first),
            0.0 if is_first else _difference_std_err(member, first),
            1 + len(rising) - bisect_right(rising, _value(member)),
            decided,
        )


def _reason(members: Sequence[Member]) -> str | None:
    """Return why a group has no order, if it has none."""
    if len(members) == 1:
        return "its group has no other text"
    if any(member.value is None and member.row >= 0 for member in members):
        return "a text of its group has no score"
    if any(member.value is None for member in members):
        return "a text of its group is not among the n chosen ones"
    return None


def has_order(members: Sequence[Member]) -> bool:
    """Return whether a group has an order: two texts or more, all of which have a score."""
    return _reason(members) is None


def _value(member: Member) -> float:
    assert member.value is not None
    return member.value


def _difference_std_err(first: Member, second: Member) -> float:
    """Return the standard error of the difference of two scores."""
    errors, others = first.mask_errors, second.mask_errors
    if errors is not None and others is not None and errors.stream == others.stream:
        return errors.std_err_of_difference(others)
    return math.hypot(first.std_err, second.std_err)


def is_decided(members: Sequence[Member]) -> bool:
    """Return whether the best member is better than each other at 95 %."""
    if any(member.value is None for member in members):
        return False
    best = max(members, key=_value)
    return all(
        _value(best) - _value(other) > Z_95 * _difference_std_err(best, other)
        for other in members
        if other is not best
    )


def accuracy(groups: Sequence[Sequence[Member]], labels: Labels) -> Iterator[Record]:
    """Yield the share of groups whose first text has the highest score, and the number of decided
    groups."""
    with_order = [*filter(has_order, groups)]
    yield Metric("groups_scored", len(with_order), 0.0, labels)
    yield Metric("groups_left_out", len(groups) - len(with_order), 0.0, labels)
    yield _share_right("accuracy", with_order, labels)
    if with_order:
        yield Metric("groups_decided", sum(map(is_decided, with_order)), 0.0, labels)


def accuracy_by_category(
    groups: Mapping[str, Sequence[Sequence[Member]]], labels: Labels
) -> Iterator[Record]:
    """Yield the share of each category's groups whose first text has the highest score."""
    for category, of_category in sorted(groups.items()):
        with_order = [*filter(has_order, of_category)]
        yield _share_right("accuracy_by_category", with_order, {**labels, "category": category})


def _share_right(name: str, groups: Sequence[Sequence[Member]], labels: Labels) -> Metric:
    """Return the share of groups whose first text has the highest score. A tie is an error. The
    standard error is never 0."""
    if not groups:
        return Metric(name, None, None, labels, "no group has two texts with scores")
    right = sum(
        all(_value(members[0]) > _value(other) for other in members[1:]) for members in groups
    )
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
    correlation = float(first @ second / math.sqrt((first @ first) * (second @ second)))
    std_err = (1 - correlation**2) * math.sqrt((1 + correlation**2 / 2) / (len(pairs) - 3))
    return Metric(name, correlation, std_err, labels)


@dataclass(frozen=True)
class ScoreColumn:
    """A score of N texts."""

    value: Tensor  # (N,)
    std_err: Tensor | None = None  # (N,)
    masks: Tensor | None = None  # (N,)
    of_tokens: Tensor | None = None  # (ΣD,)
    tokens: Tensor | None = None
    """Number of tokens that the score sums, (N,), if these are not all tokens of the text."""
    mask_errors: Mapping[int, MaskErrors] = field(default_factory=dict)
    """Errors of the texts that have the masks of others, by sequence."""
    variances: Tensor | None = None
    """Parts of the texts in the variance of the sum of their scores, (N,)."""

    @property
    def noise(self) -> Noise:
        """The errors of the scores, which are 0 for exact ones."""
        variances = torch.zeros_like(self.value) if self.variances is None else self.variances
        return Noise(variances, math.inf)

    @property
    def population_mean(self) -> Estimate:
        if self.std_err is None or self.variances is None:
            return Estimate.of(self.value)
        return population_mean(self.value, self.std_err, self.variances)


@dataclass(frozen=True)
class TextTable:
    """All texts with their scores."""

    spec: TextScores
    texts: Texts
    columns: Mapping[TextScore, ScoreColumn]
    labels: Labels

    @property
    def first(self) -> ScoreColumn:
        """The score that orders groups."""
        return self.columns[self.spec.scores[0]]

    @cached_property
    def _sequence_of(self) -> dict[int, int]:
        """The sequence of each row that is scored."""
        return {row: sequence for sequence, row in enumerate(self.texts.scored)}

    @property
    def _has_groups(self) -> bool:
        return self.spec.group_size is not None or self.spec.group_column is not None

    @cached_property
    def _groups(self) -> dict[str, list[Member]]:
        """Members of each group, in the order of the texts; those that the source's `n` does not
        choose are last and have no score."""
        groups: dict[str, list[Member]] = {}
        value = self.first.value.tolist()
        std_err = [0.0] * len(value) if self.first.std_err is None else self.first.std_err.tolist()
        for i, row in enumerate(self.texts.rows):
            if not self._has_groups or row.group is None:
                continue
            member = Member(i, None, 0.0)
            if (sequence := self._sequence_of.get(i)) is not None:
                mask_errors = self.first.mask_errors.get(sequence)
                member = Member(i, _finite(value[sequence]), std_err[sequence], mask_errors)
            groups.setdefault(row.group, []).append(member)
        for members in groups.values():
            size = self.texts.rows[members[0].row].group_size
            members += [Member(-1, None, 0.0)] * (size - len(members))
        return groups

    def metrics(self) -> Iterator[Record]:
        """Yield the metrics over all texts."""
        sizes, count = self.texts.corpus.sizes, len(self.texts.scored)
        report = Report(("model",), self.labels)
        left_out = len(self.texts.rows) - count
        yield Metric("texts_scored", count, 0.0, self.labels)
        yield Metric("texts_left_out", left_out, 0.0, self.labels)
        unknown = sum(bool(self.texts.rows[i].unknown) for i in self.texts.scored)
        yield Metric("texts_with_unknown_tokens", unknown, 0.0, self.labels)
        for score, column in self.columns.items():
            noise, values = column.noise, column.value
            is_finite = values.isfinite()
            if is_finite.any() and not is_finite.all():  # the table has the others
                reason = (
                    f"{int((~is_finite).sum())} of {count} texts have a score that is not finite"
                )
                for name in (score, f"{score}_population"):
                    yield Metric(name, None, None, self.labels, reason)
                continue
            yield report.metric(score, "model", finite_mean(values, noise, count))
            yield report.metric(score, "model", column.population_mean, "_population")
            if score in OF_MUTATIONS:  # no likelihood, so it has no perplexity
                continue
            tokens = sizes if column.tokens is None else column.tokens
            yield from report.per_token("model", per_token(values, noise, tokens, count), score)
        if self._has_groups:
            yield from accuracy([*self._groups.values()], self.labels)
            yield from accuracy_by_category(self._of_categories(), self.labels)
            yield from self._group_warnings()
        if self.spec.label_column is not None:
            labels = [self.texts.rows[i].label for i in self.texts.scored]
            if missing := labels.count(None):
                message = f"{missing} of {len(labels)} scored texts have no label that is a number"
                yield Log("warning", f"{message}: spearman leaves them out")
            yield rank_correlation(self.first.value.tolist(), labels, self.labels)

    def _group_warnings(self) -> Iterator[Record]:
        """Yield warnings of groups without an order, and of a last group that is too small."""
        names = [name for name, members in self._groups.items() if not has_order(members)]
        if names:
            shown = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
            detail = "each has a text without a score, or one text only"
            message = f"{len(names)} of {len(self._groups)} groups are left out ({detail}): {shown}"
            yield Log("warning", message)
        if self.spec.group_size is None:
            return
        for name, members in self._groups.items():  # only the last one may be smaller
            if name not in names and len(members) < self.spec.group_size:
                detail = f"group {name}, the last one, has {len(members)} texts"
                yield Log("warning", f"{detail}, not {self.spec.group_size}")

    def _of_categories(self) -> dict[str, list[list[Member]]]:
        """Return the groups of each category, without those whose first text has none."""
        groups_of: dict[str, list[list[Member]]] = {}
        for members in self._groups.values():
            if (category := self.texts.rows[members[0].row].category) is not None:
                groups_of.setdefault(category, []).append(members)
        return groups_of

    def keep(self, folder: Path | None) -> Record:
        """Write the table into a folder, if there is one."""
        if folder is None:
            return Log("info", "the table of texts is not kept: no work directory was given")
        return keep(folder, FILE, MEDIA_TYPE, self._lines)

    def _lines(self) -> Iterator[bytes]:
        for row in self.rows():
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the table."""
        in_groups = {
            ranked_text.row: ranked_text
            for members in self._groups.values()
            for ranked_text in ranked(members)
        }
        for i, row in enumerate(self.texts.rows):
            line: dict[str, Any] = {"row": row.row, "text": "\n".join(row.parts)[:MAX_SHOWN]}
            reasons = [row.reason, row.label_reason]
            if self._has_groups:
                line["group"] = row.group
            if self.spec.category_column is not None:
                line["category"] = row.category
            if self.spec.label_column is not None:
                line["label"] = row.label
            line |= self._counts(row, self._sequence_of.get(i))
            line |= self._scores(self._sequence_of.get(i))
            if row.reason is None and any(line[score] is None for score in self.columns):
                reasons.append("a score is not finite")
            if self._has_groups:
                ranked_text = in_groups.get(i)
                reasons.append(NO_GROUP if ranked_text is None else ranked_text.reason)
                names = ("difference", "difference_std_err", "rank", "decided")
                line |= {name: getattr(ranked_text, name, None) for name in names}
            line["reason"] = "; ".join(reason for reason in reasons if reason) or None
            yield line

    def _counts(self, row: TextRow, sequence: int | None) -> dict[str, Any]:
        """Return the counts of a text. Those of scored tokens are null if it was not scored."""
        tokens = words = None
        if sequence is not None:
            tokens = int(self.texts.corpus.sizes[sequence])
            words = self.texts.words_of(sequence)
        characters = sum(map(len, row.parts))
        counts = {"tokens": tokens, "words": words, "characters": characters}
        counts["unknown"] = row.unknown
        if self.spec.window_overlap is not None:
            counts["windows"] = _number(self.texts.windows.counts, sequence)
        return counts

    def _scores(self, sequence: int | None) -> dict[str, Any]:
        """Return the scores of a text; null if it was not scored."""
        scores: dict[str, Any] = {}
        for score, column in self.columns.items():
            scores[score] = _number(column.value, sequence)
            if column.tokens is not None:
                scores[f"{score}_tokens"] = _number(column.tokens, sequence)
            if column.std_err is not None and column.masks is not None:
                scores[f"{score}_std_err"] = _number(column.std_err, sequence)
                scores[f"{score}_masks"] = _number(column.masks, sequence)
        if self.spec.per_token:
            scores["by_token"] = None if sequence is None else self._by_token(sequence)
        return scores

    def _by_token(self, sequence: int) -> list[dict[str, Any]]:
        """Return the characters and scores of each token."""
        tokens = self.texts.tokens_of(sequence)
        parts = self.texts.rows[self.texts.scored[sequence]].parts
        scores = {
            name: column.of_tokens[tokens].tolist()
            for name, column in self.columns.items()
            if column.of_tokens is not None
        }
        rows = []
        for i, (part, start, end) in enumerate(self.texts.spans[tokens].tolist()):
            before = sum(len(text) + 1 for text in parts[:part])  # parts are joined by a line break
            shown = parts[part][start : min(end, start + MAX_TOKEN_SHOWN)]
            span = {"text": shown, "start": before + start, "end": before + end}
            rows.append(span | {name: _finite(values[i]) for name, values in scores.items()})
        return rows


def _number(values: Tensor, sequence: int | None) -> Any:
    return None if sequence is None else _finite(values[sequence].item())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

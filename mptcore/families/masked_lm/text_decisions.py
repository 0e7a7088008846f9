"""The best text of each group by its pseudo-log-likelihood, from as few tokens as that takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.text_groups import Member, Sampled, is_decided

NEAR = 1
"""Tokens this near to a difference are all scored: the effect of a difference is mostly there, and
a sample would miss it."""
LEAST = 4
"""Smallest sample of the tokens that the texts of a group share."""
GROWTH = 8
"""A sample that decides nothing grows by one for each so many of its tokens."""


@dataclass(frozen=True)
class Group:
    """Texts to compare: the tokens in which they differ, and those that they share."""

    texts: Sequence[int]
    """The sequence of each text."""
    own: Sequence[Sequence[int]]
    """Indices among all tokens of the corpus, for each text."""
    shared: Sequence[Sequence[int]]
    """The same of the shared tokens, in the order in which they are sampled, for each text."""

    @property
    def count(self) -> int:
        """Number of shared tokens."""
        return len(self.shared[0])

    def tokens(self, first: int, last: int) -> list[int]:
        """Return the tokens to score when the sample grows from `first` to `last` tokens; from 0 on
        with those in which the texts differ."""
        own = [token for tokens in self.own for token in tokens] if first == 0 else []
        return own + [token for tokens in self.shared for token in tokens[first:last]]

    def members(self, scores: np.ndarray, drawn: int) -> list[Member]:
        """Return the texts with their scores, estimated from the first `drawn` shared tokens."""
        found = []
        for text, own, shared in zip(self.texts, self.own, self.shared, strict=True):
            values = scores[shared[:drawn]]
            exact = float(scores[list(own)].sum())
            if drawn == self.count:
                value = exact + float(values.sum())
                found.append(Member(text, value if math.isfinite(value) else None, 0.0))
                continue
            sampled = Sampled(values, self.count)
            value = exact + self.count * float(values.mean())
            finite = value if math.isfinite(value) else None
            found.append(Member(text, finite, sampled.std_err(), sampled))
        return found


@dataclass
class Decisions:
    """Decides groups of texts of a corpus. In each round a group that is not decided gets more
    tokens, up to all of them."""

    groups: Sequence[Group]
    corpus: Corpus
    alone: Sequence[int]
    """Sequences that belong to no group. All their tokens are scored."""
    scores: Tensor  # (ΣD,), log p of each token that is scored, else nan
    is_scored: Tensor  # (ΣD,) bool
    drawn: Tensor  # (G,), size of each group's sample
    is_decided: Tensor  # (G,) bool, groups whose sample grows no more

    @classmethod
    def of(
        cls, groups: Sequence[Sequence[int]], corpus: Corpus, generator: torch.Generator
    ) -> "Decisions":
        """Prepare the decisions of groups of sequences, in a random order of their tokens."""
        made = [_group(texts, corpus, generator) for texts in groups]
        grouped = {text for texts in groups for text in texts}
        alone = [text for text in range(len(corpus)) if text not in grouped]
        scores = torch.full((int(corpus.sizes.sum()),), math.nan, dtype=torch.float64)
        drawn = torch.zeros(len(made), dtype=torch.long)
        scored, decided = (torch.zeros(n, dtype=torch.bool) for n in (len(scores), len(made)))
        return cls(made, corpus, alone, scores, scored, drawn, decided)

    @cached_property
    def _found(self) -> np.ndarray:
        return self.scores.numpy()

    def planned(self) -> Tensor:
        """Return the size of each group's next sample, (G,): unchanged where it is decided."""
        sizes = self.drawn.tolist()
        for i in (~self.is_decided).nonzero().flatten().tolist():
            group, drawn = self.groups[i], sizes[i]
            if drawn == 0:
                sizes[i] = min(LEAST, group.count)
            elif drawn < group.count and not is_decided(group.members(self._found, drawn)):
                sizes[i] = min(group.count, drawn + math.ceil(drawn / GROWTH))
        return torch.tensor(sizes, dtype=torch.long)

    def chosen(self, sizes: Tensor) -> Tensor:
        """Mark the tokens that samples of these sizes need and that are not scored yet, (ΣD,)."""
        first = not bool(self.is_scored.any())
        found = torch.zeros(len(self.scores), dtype=torch.bool)
        for text in self.alone if first else []:
            begin = int(self.corpus.first_free[text])
            found[begin : begin + int(self.corpus.sizes[text])] = True
        changes = zip(self.groups, self.drawn.tolist(), sizes.tolist(), strict=True)
        tokens = [
            token
            for group, before, after in changes
            if after > before or first
            for token in group.tokens(before, after)
        ]
        found[tokens] = True
        return found

    def add(self, chosen: Tensor, values: Tensor, sizes: Tensor) -> None:
        """Add the scores of the chosen tokens: the samples have these sizes now."""
        self.scores[chosen] = values
        self.is_scored |= chosen
        self.is_decided |= sizes == self.drawn
        self.drawn = sizes

    def members(self) -> list[Member]:
        """Return each sequence with its score."""
        found = [Member(text, None, 0.0) for text in range(len(self.corpus))]
        for group, drawn in zip(self.groups, self.drawn.tolist(), strict=True):
            for member in group.members(self._found, drawn):
                found[member.row] = member
        for text in self.alone:
            begin = int(self.corpus.first_free[text])
            value = float(self._found[begin : begin + int(self.corpus.sizes[text])].sum())
            found[text] = Member(text, value if math.isfinite(value) else None, 0.0)
        return found


def _group(texts: Sequence[int], corpus: Corpus, generator: torch.Generator) -> Group:
    begins = [int(corpus.first_free[text]) for text in texts]
    ids = []
    for text, begin in zip(texts, begins, strict=True):
        places = corpus.free[begin : begin + int(corpus.sizes[text])]
        ids.append(corpus.ids[int(corpus.offsets[text]) + places].tolist())
    own, shared = aligned(ids)
    order = torch.randperm(len(shared[0]), generator=generator).tolist()
    return Group(
        texts,
        [[begin + at for at in one] for begin, one in zip(begins, own, strict=True)],
        [[begin + one[i] for i in order] for begin, one in zip(begins, shared, strict=True)],
    )


def aligned(
    texts: Sequence[Sequence[int]], near: int = NEAR
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the positions of the tokens that differ, with those at most `near` tokens from one,
    and of the other tokens, which the texts share; both for each text. In texts of one length, a
    token is shared if it is equal in the same place; in others, if it is before the first
    difference or after the last one."""
    length = min(map(len, texts))
    first = texts[0]
    if all(len(one) == length for one in texts):
        differs = [len({*tokens}) > 1 for tokens in zip(*texts, strict=True)]
        is_own = [any(differs[max(0, i - near) : i + near + 1]) for i in range(length)]
        same = [i for i in range(length) if not is_own[i]]
        other = [i for i in range(length) if is_own[i]]
        return [other for _ in texts], [same for _ in texts]
    before = next((i for i in range(length) if any(one[i] != first[i] for one in texts)), length)
    after = 0
    while after < length - before and all(one[-1 - after] == first[-1 - after] for one in texts):
        after += 1
    before, after = max(0, before - near), max(0, after - near)
    own = [[*range(before, len(one) - after)] for one in texts]
    shared = [[*range(before), *range(len(one) - after, len(one))] for one in texts]
    return own, shared

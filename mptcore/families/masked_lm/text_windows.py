"""Windows of texts that have more tokens than a model can read."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import Corpus, counted_from, of_sequences, repeated
from mptcore.families.masked_lm.corpus import Sequence as TokenSequence
from mptcore.protocol.records import RunError


class Window(NamedTuple):
    """A part of a text, with the special tokens of the whole."""

    sequence: TokenSequence
    scored: range
    """Indices of the tokens that are scored in this window."""


@dataclass(frozen=True)
class Windows:
    """W sequences that the model reads in place of N texts with ΣD maskable tokens. Each token is
    scored in one of them."""

    corpus: Corpus
    tokens: Tensor  # (ΣD,), index in `corpus.free` where each token of the texts is scored
    sizes: Tensor  # (W,), number of tokens that are scored in each window
    counts: Tensor  # (N,), number of windows of each text

    @classmethod
    def of_whole_texts(cls, texts: Corpus) -> "Windows":
        """Return one window for each text."""
        tokens = torch.arange(int(texts.sizes.sum()))
        return cls(texts, tokens, texts.sizes, torch.ones_like(texts.sizes))

    @classmethod
    def of(cls, texts: Iterable[list[Window]]) -> "Windows":
        """Build the windows of all texts. Each window has a token that is scored in it."""
        all_texts = list(texts)
        windows = [window for text in all_texts for window in text]
        corpus = of_sequences([window.sequence for window in windows])
        starts = torch.tensor(
            [sum(window.sequence.maskable[: window.scored.start]) for window in windows]
        )
        sizes = torch.tensor([_count(window) for window in windows])
        tokens = counted_from(corpus.first_free + starts, sizes)
        return cls(corpus, tokens, sizes, torch.tensor([len(text) for text in all_texts]))

    def tokens_of(self, windows: Tensor) -> Tensor:
        """Return the tokens of the texts that are scored in some windows."""
        first = self.sizes.cumsum(0) - self.sizes
        return counted_from(first[windows], self.sizes[windows])

    def limited(self, counts: Tensor) -> Tensor:
        """Limit numbers of consecutive tokens (ΣD,), from each token on, to the token's window."""
        ends = repeated(self.corpus.first_free + self.corpus.sizes, self.sizes)
        return torch.minimum(counts, ends - self.tokens)


def check_overlap(overlap: int, length: int, special: int) -> None:
    """Raises RunError if windows of `length` tokens, of which some are special, share more than
    half of their tokens: the text would be read many times."""
    if 2 * overlap > length - special:
        max_overlap = max(0, (length - special) // 2)
        detail = f"{max_overlap} at most, half of the tokens of a window"
        raise RunError(
            "invalid", f"evaluate.texts.window_overlap is {overlap}, but may be {detail}"
        )


def windows_of(sequence: TokenSequence, length: int, overlap: int) -> list[Window]:
    """Cut a sequence into windows of at most `length` tokens. Neighbours share `overlap` tokens,
    the last two perhaps more; each token is scored where it is farthest from an end of its window.
    None are returned if special tokens at its ends leave too little room."""
    count = len(sequence.ids)
    if count <= length:
        return [Window(sequence, range(count))]
    free = [at for at, is_free in enumerate(sequence.maskable) if is_free]
    before, after = free[0], free[-1] + 1
    room = length - before - (count - after)
    if 2 * overlap > room:
        return []
    starts = [*range(before, after - room, room - overlap), after - room]
    middles = [(start + following + room + 1) // 2 for start, following in pairwise(starts)]
    windows = []
    for start, first, last in zip(starts, [0, *middles], [*middles, count], strict=True):
        indices = [*range(before), *range(start, start + room), *range(after, count)]
        cut = TokenSequence(
            [sequence.ids[i] for i in indices],
            [sequence.types[i] for i in indices],
            [sequence.maskable[i] for i in indices],
            [sequence.unknown[i] for i in indices],
        )
        shift = before - start
        windows.append(Window(cut, range(first + shift, last + shift)))
    return [window for window in windows if _count(window)]


def _count(window: Window) -> int:
    """Return the number of tokens that are scored in a window."""
    return sum(window.sequence.maskable[window.scored.start : window.scored.stop])

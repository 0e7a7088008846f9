"""Texts that are scored one by one: their tokens, words, groups and labels."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any
from unicodedata import category

import torch
from torch import Tensor

from mptcore.data.texts import Rows, columns, texts
from mptcore.families.masked_lm.checkpoints import Tokenizer
from mptcore.families.masked_lm.corpus import (
    BATCH,
    Corpus,
    chosen_rows,
    of_sequences,
    repeated,
    sequence_of,
    special_tokens,
    types_of,
)
from mptcore.families.masked_lm.corpus import Sequence as TokenSequence
from mptcore.families.masked_lm.text_windows import Window, Windows, check_overlap, windows_of
from mptcore.protocol.records import RunError
from mptcore.specs import TextScores, TextSource

MAX_GROUP = 200
"""Maximum number of characters of the name of a group or category."""
MAX_CATEGORIES = 200
NO_TEXT = "it has no text"
NO_TOKENS = "it has no token that can be masked"
NO_PREFIX = "its prefix is neither its beginning nor a number of its characters"
NOTHING_AFTER = "no token begins after its prefix"


@dataclass(frozen=True)
class TextRow:
    """A text of the source. `row` is its index, from 0. Blank lines of a file have none."""

    row: int
    parts: tuple[str, ...]
    group: str | None = None
    group_size: int = 0
    """Number of texts of its group in the source, also of those that `n` does not choose."""
    category: str | None = None
    label: float | None = None
    reason: str | None = None
    """Reason why the text has no scores."""
    unknown: int | None = None
    """Number of its unknown and special tokens, and of characters without a token; of a mutation,
    those of the wild type."""
    label_reason: str | None = None
    given: int | None = 0
    """Number of its first characters that are given; None if its prefix is not its beginning."""


@dataclass(frozen=True)
class TokenizedText:
    """A tokenized text, with the word and the characters of each maskable token."""

    sequence: TokenSequence
    words: list[tuple[int, int | None]]
    spans: list[tuple[int, int, int]]
    dropped: int = 0
    """Number of characters that the tokenizer has left out, because it has no token for them."""


@dataclass(frozen=True)
class Texts:
    """All texts, and the N of them that are scored as a corpus of ΣD maskable tokens."""

    rows: list[TextRow]
    corpus: Corpus
    scored: list[int]
    """Index in `rows` of each sequence of the corpus, (N,)."""
    words: Tensor  # (ΣD,), the word that a token belongs to, counted over the corpus
    spans: Tensor  # (ΣD, 3): the part of the text, its first character, the one after its last
    windows: Windows

    @classmethod
    def of(
        cls,
        rows: list[TextRow],
        tokenized_texts: list[TokenizedText],
        windows: list[list[Window]] | None = None,
    ) -> "Texts":
        """Build the texts. `tokenized_texts` has the tokens of the rows without a reason, and
        `windows` their windows; default: one for each text. Raises RunError if there are none."""
        if not tokenized_texts:
            detail = "; ".join(f"text {row.row}: {row.reason}" for row in rows[:3])
            raise RunError("invalid", f"none of the {len(rows)} texts can be scored: {detail}")
        scored = [i for i, row in enumerate(rows) if row.reason is None]
        spans = torch.tensor([span for text in tokenized_texts for span in text.spans])
        corpus = of_sequences([text.sequence for text in tokenized_texts])
        parts = Windows.of_whole_texts(corpus) if windows is None else Windows.of(windows)
        return cls(rows, corpus, scored, _words(tokenized_texts), spans, parts)

    @cached_property
    def in_part(self) -> Tensor:
        """Mark the tokens that begin after the given characters, (ΣD,)."""
        given = torch.tensor([self.rows[i].given or 0 for i in self.scored])
        return self.spans[:, 1] >= repeated(given, self.corpus.sizes)

    @property
    def mask_groups(self) -> list[str]:
        """Names of the groups in which scored texts share their masks, (N,). A text without a group
        shares its masks with none."""
        rows = [self.rows[i] for i in self.scored]
        return [f"row {row.row}" if row.group is None else f"group {row.group}" for row in rows]

    def words_of(self, sequence: int) -> int:
        """Return the number of words of a sequence."""
        words = self.words[self.tokens_of(sequence)]
        return int(words[-1] - words[0]) + 1

    def tokens_of(self, sequence: int) -> slice:
        """Return the positions of a sequence's maskable tokens among all of them."""
        first = int(self.corpus.first_free[sequence])
        return slice(first, first + int(self.corpus.sizes[sequence]))


def read(spec: TextSource, scores: TextScores, tokenizer: Tokenizer, length: int) -> Texts:
    """Read the texts. One with more than `length` tokens is scored in windows if the scores have an
    overlap and the text is not a pair; otherwise it is not scored, and neither is one without a
    maskable token. Raises RunError if no text is left."""
    all_rows = rows_of(spec, scores)
    rows: list[TextRow] = []
    tokenized_texts: list[TokenizedText] = []
    windows: list[list[Window]] = []
    overlap = scores.window_overlap
    if overlap is not None:
        check_overlap(overlap, length, tokenizer.num_special_tokens_to_add())
    parts = [row.parts for row in all_rows]
    for row, tokens in zip(all_rows, tokenized(parts, tokenizer), strict=True):
        count = len(tokens.sequence.ids)
        reason = None if tokens.words else NO_TOKENS
        if not all(row.parts):
            reason = NO_TEXT
        elif row.given is None:
            reason = NO_PREFIX
        elif reason is None and tokens.spans[-1][1] < row.given:
            reason = NOTHING_AFTER
        cut: list[Window] = []
        if reason is None and overlap is not None and len(row.parts) == 1:
            cut = windows_of(tokens.sequence, length, overlap)
        if count > length and not cut:
            reason = f"it has {count} tokens, the model and max_length allow {length}"
        unknown = sum(tokens.sequence.unknown) + tokens.dropped if all(row.parts) else None
        rows.append(replace(row, reason=reason, unknown=unknown))
        if reason is None:
            tokenized_texts.append(tokens)
            windows.append(cut or [Window(tokens.sequence, range(count))])
    return Texts.of(rows, tokenized_texts, None if overlap is None else windows)


def rows_of(spec: TextSource, scores: TextScores) -> list[TextRow]:
    """Return the texts that a source chooses, with their groups, categories and labels. Raises
    RunError."""
    all_texts = texts(spec)
    named = tuple(scores.columns.values())
    beside = columns(spec, named) if named else [()] * len(all_texts)
    rows = [_row(i, *given, scores) for i, given in enumerate(zip(all_texts, beside, strict=True))]
    sizes = Counter(row.group for row in rows)
    rows = [replace(row, group_size=sizes[row.group]) for row in rows]
    if spec.n is not None:
        rows = [rows[i] for i in chosen_rows(spec, all_texts)]
    if (count := len({row.category for row in rows} - {None})) > MAX_CATEGORIES:
        detail = f"column {scores.category_column} has {count} different values, at most"
        raise RunError("invalid", f"{detail} {MAX_CATEGORIES} are allowed as categories")
    return rows


def _words(tokenized_texts: list[TokenizedText]) -> Tensor:
    """Number the words over all texts, (ΣD,). A token that belongs to no word counts as a word."""
    numbers, number = [], -1
    for tokens in tokenized_texts:
        before: tuple[int, int | None] | None = None
        for word in tokens.words:
            number += word != before or word[1] is None
            numbers.append(number)
            before = word
    return torch.tensor(numbers)


def _row(row: int, parts: tuple[str, ...], beside: tuple[Any, ...], scores: TextScores) -> TextRow:
    """Return a text with its group, category and label."""
    values = iter(beside)
    group = _name(next(values)) if scores.group_column else None
    if scores.group_size is not None:
        group = str(row // scores.group_size)
    category = _name(next(values)) if scores.category_column else None
    label, reason = _number(next(values)) if scores.label_column else (None, None)
    given: int | None = 0
    if scores.prefix_column:
        given = _length_of(next(values), parts[0])
    return TextRow(
        row, parts, group, category=category, label=label, label_reason=reason, given=given
    )


def _name(value: Any) -> str | None:
    """Return the name of a group or category; None if it has none, or one that is too long."""
    return None if value is None or len(str(value)) > MAX_GROUP else str(value)


def _length_of(prefix: Any, text: str) -> int | None:
    """Return the number of characters of a text's beginning, which is given itself or by this
    number. None: the text does not begin so."""
    if isinstance(prefix, str) and (text.startswith(prefix) or not prefix.isdecimal()):
        return len(prefix) if text.startswith(prefix) else None
    count, _ = _number(prefix)
    return int(count) if count is not None and count in range(len(text) + 1) else None


def _number(value: Any) -> tuple[float | None, str | None]:
    """Return a label, which may be a number as text, or the reason why it is none."""
    with suppress(ValueError):
        text = str(value).replace("_", "no number")  # as in 1_0, which Python would read
        number = float(text) if isinstance(value, str | int | float) else math.nan
        if not isinstance(value, bool) and math.isfinite(number):
            return number, None
    return None, f"the label {str(value)[:40]!r} is not a number"


def tokenized(rows: Rows, tokenizer: Tokenizer) -> Iterator[TokenizedText]:
    """Yield the texts as tokens, with their special tokens."""
    special, remaining = special_tokens(tokenizer), iter(rows)
    while batch := list(islice(remaining, BATCH)):
        encoded = tokenizer(*map(list, zip(*batch, strict=True)), verbose=False)
        encodings = zip(batch, encoded.encodings, types_of(encoded), strict=True)
        for row, encoding, types in encodings:
            tokens = sequence_of(encoding, types, special, tokenizer.unk_token_id)
            # Each of these attributes builds its whole list when it is read.
            sequences, offsets = encoding.sequence_ids, encoding.offsets
            word_ids = encoding.word_ids
            of_text = [at for at, free in enumerate(tokens.maskable) if free]
            parts = [sequences[at] or 0 for at in of_text]
            words = [(part, word_ids[at]) for part, at in zip(parts, of_text, strict=True)]
            spans = [(part, *offsets[at]) for part, at in zip(parts, of_text, strict=True)]
            spans_of_row = [*zip(sequences, offsets, strict=True)]
            dropped = sum(
                _dropped(text, [span for of, span in spans_of_row if of == part])
                for part, text in enumerate(row)
            )
            yield TokenizedText(tokens, words, spans, dropped)


def _dropped(text: str, spans: Iterable[tuple[int, int]]) -> int:
    """Return the number of letters, digits, signs and symbols of a text that are in no token.
    Blanks, accents and control characters are left out by many tokenizers, and do not count."""
    uncovered = bytearray(b"\1") * len(text)
    for start, end in spans:
        uncovered[start:end] = bytes(end - start)
    return sum(category(text[i])[0] in "LNPS" for i, is_left in enumerate(uncovered) if is_left)

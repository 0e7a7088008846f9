"""Mutations of a wild type: their places, their tokens, and their scores."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.families.masked_lm.checkpoints import Tokenizer
from mptcore.families.masked_lm.corpus import Corpus, counted_from, of_sequences
from mptcore.families.masked_lm.corpus import Sequence as TokenSequence
from mptcore.families.masked_lm.masks import CHUNK_TOKENS, MaskedBatch, Masker, VariantBatch
from mptcore.families.masked_lm.network import MaskedLm, ScoredBatch, score_batches
from mptcore.families.masked_lm.text_rows import (
    NO_TEXT,
    TextRow,
    Texts,
    TokenizedText,
    rows_of,
    tokenized,
)
from mptcore.families.masked_lm.text_table import ScoreColumn, TextTable
from mptcore.protocol.records import Labels, RunError
from mptcore.runtime.state import Records, RunState
from mptcore.specs import TextScore, TextScores, TextSource

CHANGE = re.compile(r"(\S)([1-9][0-9]{0,8})(\S)")
NO_SINGLE_TOKEN = "is not a token of its own"
TOGETHER = 2**20
"""Approximate number of letters or tokens of the changed wild types that are tokenized together."""


class Change(NamedTuple):
    """A new letter at a place of the wild type, counted from 0."""

    place: int
    letter: str


def changes_of(mutation: str, wild_type: str) -> list[Change] | str:
    """Return the changes of a mutation, such as A24G or A24G:K30R, by place; or the reason why it
    does not fit the wild type."""
    changes = []
    for part in mutation.strip().split(":"):
        match = CHANGE.fullmatch(part)
        if match is None:
            return f"{part[:20]!r} is not a change such as A24G; several are joined by a colon"
        before, place, after = match[1], int(match[2]), match[3]
        if place > len(wild_type):
            return f"place {place} is beyond the {len(wild_type)} letters of the wild type"
        if wild_type[place - 1] != before:
            return f"the wild type has {wild_type[place - 1]} at place {place}, not {before}"
        if after == before:
            return f"{part} changes nothing"
        changes.append(Change(place - 1, after))
    if len({change.place for change in changes}) < len(changes):
        return "a place is changed twice"
    return sorted(changes)


@dataclass(frozen=True)
class WildType:
    """A tokenized sequence of letters, most of which are tokens of their own."""

    letters: str
    tokens: TokenSequence
    positions: Mapping[int, int]
    """Position among the tokens of each letter that is a token of its own, by its place."""
    unknown: int = 0
    """Number of its unknown tokens, and of letters without a token."""

    @classmethod
    def of(cls, letters: str, tokenizer: Tokenizer, length: int) -> "WildType":
        """Tokenize a wild type. Raises RunError if it has more than `length` tokens."""
        (text,) = tokenized([(letters,)], tokenizer)
        tokens, ids = text.sequence, text.sequence.ids
        if len(ids) > length:
            detail = f"{len(ids)} tokens, the model and max_length allow {length}"
            raise RunError("invalid", f"evaluate.texts.wild_type has {detail}")
        positions = {
            place: at for place, at in _positions(text).items() if ids[at] != tokenizer.unk_token_id
        }
        return cls(letters, tokens, positions, sum(tokens.unknown) + text.dropped)

    def targets(self, changes: Iterable[Change], tokenizer: Tokenizer) -> dict[Change, int]:
        """Return the new token of each change. It depends on the place: a letter may have another
        token at the beginning of a word. A change is left out if the tokenizer does not know its
        letter, or if it changes other tokens."""
        remaining = iter(
            dict.fromkeys(change for change in changes if change.place in self.positions)
        )
        targets = {}
        count = max(1, TOGETHER // max(len(self.letters), len(self.tokens.ids)))
        while part := list(islice(remaining, count)):
            changed = [self.letters[:i] + new + self.letters[i + 1 :] for i, new in part]
            rows = tokenizer(changed, verbose=False)["input_ids"]
            for change, ids in zip(part, rows, strict=True):
                at = self.positions[change.place]
                token, old_token = ids[at : at + 1], self.tokens.ids[at : at + 1]
                is_alone = ids[:at] + old_token + ids[at + 1 :] == self.tokens.ids
                if is_alone and token != [tokenizer.unk_token_id]:
                    targets[change] = token[0]
        return targets


def _positions(tokens: TokenizedText) -> dict[int, int]:
    """Return the position among all tokens of each letter that is a token of its own."""
    maskable = [at for at, free in enumerate(tokens.sequence.maskable) if free]
    spans = zip(maskable, tokens.spans, strict=True)
    return {start: at for at, (_, start, end) in spans if end == start + 1}


@dataclass(frozen=True)
class Mutations:
    """All mutations as rows of a table, and the N of them that are scored. Their corpus has the new
    tokens of each."""

    table: Texts
    wild_type: Corpus
    """The wild type as a corpus of one sequence."""
    positions: Tensor  # (ΣD,), position among the wild type's tokens of each change

    def sorted(self) -> Tensor:
        """Return an order of the mutations in which those of the same positions are neighbours."""
        return torch.tensor(sorted(range(len(self.table.corpus)), key=self.positions_of))

    def positions_of(self, mutation: int) -> list[int]:
        """Return the positions of a mutation's tokens."""
        positions: list[int] = self.positions[self.table.tokens_of(mutation)].tolist()
        return positions


def read(spec: TextSource, scores: TextScores, tokenizer: Tokenizer, length: int) -> Mutations:
    """Read mutations. One that does not fit the wild type is not scored. Raises RunError if none
    is left."""
    assert scores.wild_type is not None
    wild_type = WildType.of(scores.wild_type, tokenizer, length)
    rows = rows_of(spec, scores)
    changes_of_rows = [
        changes_of(row.parts[0], wild_type.letters) if row.parts[0] else NO_TEXT for row in rows
    ]
    every = [
        change for changes in changes_of_rows if not isinstance(changes, str) for change in changes
    ]
    targets = wild_type.targets(every, tokenizer)
    scored: list[list[Change]] = []
    kept: list[TextRow] = []
    for row, changes in zip(rows, changes_of_rows, strict=True):
        reason = changes if isinstance(changes, str) else _reason(changes, wild_type, targets)
        kept.append(replace(row, reason=reason, unknown=wild_type.unknown))
        if reason is None and not isinstance(changes, str):
            scored.append(changes)
    table = Texts.of(kept, [_tokens(changes, targets) for changes in scored])
    positions = [wild_type.positions[change.place] for changes in scored for change in changes]
    return Mutations(table, of_sequences([wild_type.tokens]), torch.tensor(positions))


def _reason(
    changes: Sequence[Change], wild_type: WildType, targets: Mapping[Change, int]
) -> str | None:
    """Return why the tokenizer cannot take some changes, if it cannot."""
    for change in changes:
        if change.place not in wild_type.positions:
            return f"the letter at place {change.place + 1} {NO_SINGLE_TOKEN}"
        if change not in targets:
            return f"the letter {change.letter} {NO_SINGLE_TOKEN} at place {change.place + 1}"
    return None


def _tokens(changes: Sequence[Change], targets: Mapping[Change, int]) -> TokenizedText:
    """Return the new tokens of a mutation."""
    ids, count = [targets[change] for change in changes], len(changes)
    tokens = TokenSequence(ids, [0] * count, [True] * count, [False] * count)
    words: list[tuple[int, int | None]] = [(0, place) for place, _ in changes]
    return TokenizedText(tokens, words, [])


@dataclass
class MutationScoring:
    """Scores mutations by one model as the spec asks."""

    spec: TextScores
    mutations: Mutations
    model: MaskedLm
    masker: Masker
    """Masks the wild type."""
    state: RunState
    labels: Labels

    def total_masks(self) -> int:
        """Return the number of mutations times scores."""
        return len(self.spec.scores) * len(self.mutations.table.scored)

    def records(self, seed: int) -> Records[TextTable]:
        """Score the mutations, and return their table. Nothing is drawn at random."""
        columns: dict[TextScore, ScoreColumn] = {}
        for score in self.spec.scores:
            values = yield from self._scored(masked=score == "masked_marginal")
            columns[score] = ScoreColumn(values)
        return TextTable(self.spec, self.mutations.table, columns, self.labels)

    def _scored(self, masked: bool) -> Records[Tensor]:
        """Return log p of the new letters minus that of the wild type's, (N,)."""
        order = self.mutations.sorted()
        differences = []
        for scored in score_batches(
            {"model": self.model}, self._batches(order, masked), self.state
        ):
            if isinstance(scored, ScoredBatch):
                changed, wild = scored.values[0]
                differences.append(changed - wild)
            else:
                yield scored
        return torch.empty(len(order), dtype=torch.float64).index_copy_(
            0, order, torch.cat(differences)
        )

    def _batches(self, order: Tensor, masked: bool) -> Iterator[tuple[MaskedBatch, None]]:
        """Yield the mutations in this order, in parts whose inputs have about CHUNK_TOKENS."""
        length, tokens = int(self.masker.corpus.lengths[0]), 0
        part: list[int] = []
        contexts: list[int] = []
        before: list[int] | None = None
        for mutation in order.tolist():
            positions = self.mutations.positions_of(mutation) if masked else []
            if positions != before and tokens > CHUNK_TOKENS:
                yield self._batch(part, contexts, masked), None
                part, contexts, tokens = [], [], 0
            contexts.append(contexts[-1] + (positions != before) if contexts else 0)
            part.append(mutation)
            tokens += len(positions) + (length if positions != before else 1)
            before = positions
        yield self._batch(part, contexts, masked), None

    def _batch(self, part: list[int], contexts: list[int], masked: bool) -> VariantBatch:
        table, mutations = self.mutations.table, torch.tensor(part)
        new = counted_from(table.corpus.first_free[mutations], table.corpus.sizes[mutations])
        return VariantBatch(
            self.masker.corpus,
            torch.zeros_like(mutations),
            table.corpus.sizes[mutations],
            self.mutations.positions[new],
            self.masker.mask_id,
            targets=table.corpus.ids[new],
            contexts=torch.tensor(contexts),
            masked=masked,
        )

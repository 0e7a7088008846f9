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
NO_OWN_TOKEN = "is not a token of its own"
TOGETHER = 2**20
"""Approximate number of letters or tokens of the changed wild types that are tokenized together."""


class Change(NamedTuple):
    """A new letter at a place of the wild type, counted from 0."""

    place: int
    letter: str


def changes_of(mutation: str, wild_type: str) -> list[Change] | str:
    """Return the changes of a mutation, such as A24G or A24G:K30R, by place; or the reason why it
    does not fit the wild type."""
    found = []
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
        found.append(Change(place - 1, after))
    if len({one.place for one in found}) < len(found):
        return "a place is changed twice"
    return sorted(found)


@dataclass(frozen=True)
class WildType:
    """A tokenized sequence of letters, most of which are tokens of their own."""

    letters: str
    tokens: TokenSequence
    places: Mapping[int, int]
    """Place among the tokens of each letter that is a token of its own."""
    unknown: int = 0
    """Number of its unknown tokens, and of letters without a token."""

    @classmethod
    def of(cls, letters: str, tokenizer: Tokenizer, length: int) -> "WildType":
        """Tokenize a wild type. Raises RunError if it has more than `length` tokens."""
        (found,) = tokenized([(letters,)], tokenizer)
        if len(found.sequence.ids) > length:
            detail = f"{len(found.sequence.ids)} tokens, the model and max_length allow {length}"
            raise RunError("invalid", f"evaluate.texts.wild_type has {detail}")
        ids, places = found.sequence.ids, _places(found).items()
        known = {i: at for i, at in places if ids[at] != tokenizer.unk_token_id}
        unknown = sum(found.sequence.unknown) + found.dropped
        return cls(letters, found.sequence, known, unknown)

    def targets(self, changes: Iterable[Change], tokenizer: Tokenizer) -> dict[Change, int]:
        """Return the new token of each change. It depends on the place: a letter may have another
        token at the beginning of a word. A change is left out if the tokenizer does not know its
        letter, or if it changes other tokens."""
        rest = iter(dict.fromkeys(one for one in changes if one.place in self.places))
        found = {}
        count = max(1, TOGETHER // max(len(self.letters), len(self.tokens.ids)))
        while part := list(islice(rest, count)):
            changed = [self.letters[:i] + new + self.letters[i + 1 :] for i, new in part]
            rows = tokenizer(changed, verbose=False)["input_ids"]
            for one, ids in zip(part, rows, strict=True):
                at = self.places[one.place]
                token, own = ids[at : at + 1], self.tokens.ids[at : at + 1]
                is_alone = ids[:at] + own + ids[at + 1 :] == self.tokens.ids
                if is_alone and token != [tokenizer.unk_token_id]:
                    found[one] = token[0]
        return found


def _places(tokens: TokenizedText) -> dict[int, int]:
    """Return the place among all tokens of each letter that is a token of its own."""
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
    places: Tensor  # (ΣD,), place among the wild type's tokens of each change

    def sorted(self) -> Tensor:
        """Return an order of the mutations in which those of the same places are neighbours."""
        return torch.tensor(sorted(range(len(self.table.corpus)), key=self.places_of))

    def places_of(self, mutation: int) -> list[int]:
        """Return the places of a mutation."""
        places: list[int] = self.places[self.table.tokens_of(mutation)].tolist()
        return places


def read(spec: TextSource, scores: TextScores, tokenizer: Tokenizer, length: int) -> Mutations:
    """Read mutations. One that does not fit the wild type is not scored. Raises RunError if none
    is left."""
    assert scores.wild_type is not None
    wild_type = WildType.of(scores.wild_type, tokenizer, length)
    rows = rows_of(spec, scores)
    found = [
        changes_of(row.parts[0], wild_type.letters) if row.parts[0] else NO_TEXT for row in rows
    ]
    every = [one for changes in found if not isinstance(changes, str) for one in changes]
    targets = wild_type.targets(every, tokenizer)
    scored: list[list[Change]] = []
    kept: list[TextRow] = []
    for row, changes in zip(rows, found, strict=True):
        reason = changes if isinstance(changes, str) else _reason(changes, wild_type, targets)
        kept.append(replace(row, reason=reason, unknown=wild_type.unknown))
        if reason is None and not isinstance(changes, str):
            scored.append(changes)
    table = Texts.of(kept, [_tokens(changes, targets) for changes in scored])
    places = [wild_type.places[one.place] for changes in scored for one in changes]
    return Mutations(table, of_sequences([wild_type.tokens]), torch.tensor(places))


def _reason(
    changes: Sequence[Change], wild_type: WildType, targets: Mapping[Change, int]
) -> str | None:
    """Return why the tokenizer cannot take some changes, if it cannot."""
    for one in changes:
        if one.place not in wild_type.places:
            return f"the letter at place {one.place + 1} {NO_OWN_TOKEN}"
        if one not in targets:
            return f"the letter {one.letter} {NO_OWN_TOKEN} at place {one.place + 1}"
    return None


def _tokens(changes: Sequence[Change], targets: Mapping[Change, int]) -> TokenizedText:
    """Return the new tokens of a mutation."""
    ids, count = [targets[one] for one in changes], len(changes)
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
        found = []
        for scored in score_batches(
            {"model": self.model}, self._batches(order, masked), self.state
        ):
            if isinstance(scored, ScoredBatch):
                own, wild = scored.values[0]
                found.append(own - wild)
            else:
                yield scored
        return torch.empty(len(order), dtype=torch.float64).index_copy_(0, order, torch.cat(found))

    def _batches(self, order: Tensor, masked: bool) -> Iterator[tuple[MaskedBatch, None]]:
        """Yield the mutations in this order, in parts whose inputs have about CHUNK_TOKENS."""
        length, taken = int(self.masker.corpus.lengths[0]), 0
        part: list[int] = []
        contexts: list[int] = []
        before: list[int] | None = None
        for mutation in order.tolist():
            places = self.mutations.places_of(mutation) if masked else []
            if places != before and taken > CHUNK_TOKENS:
                yield self._batch(part, contexts, masked), None
                part, contexts, taken = [], [], 0
            contexts.append(contexts[-1] + (places != before) if contexts else 0)
            part.append(mutation)
            taken += len(places) + (length if places != before else 1)
            before = places
        yield self._batch(part, contexts, masked), None

    def _batch(self, part: list[int], contexts: list[int], masked: bool) -> VariantBatch:
        table, chosen = self.mutations.table, torch.tensor(part)
        new = counted_from(table.corpus.first_free[chosen], table.corpus.sizes[chosen])
        return VariantBatch(
            self.masker.corpus,
            torch.zeros_like(chosen),
            table.corpus.sizes[chosen],
            self.mutations.places[new],
            self.masker.mask_id,
            targets=table.corpus.ids[new],
            contexts=torch.tensor(contexts),
            masked=masked,
        )

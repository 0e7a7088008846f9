"""Score each text of a source, and yield the table of scores and its metrics."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import counted_from, repeated
from mptcore.families.masked_lm.masks import CHUNK_TOKENS, MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm, ScoredBatch, score_batches
from mptcore.families.masked_lm.text_cumulative import STRATA, CumulativeScores
from mptcore.families.masked_lm.text_rows import Texts
from mptcore.families.masked_lm.text_table import ScoreColumn, TextTable
from mptcore.protocol.records import Labels, Log, Metric, Record
from mptcore.runtime.state import Records, RunState
from mptcore.specs import TextScore, TextScores

OF_TOKENS = ("pll", "pll_word_l2r")
"""Scores that are sums over tokens. Each token needs a separate pass."""
MaskFunction = Callable[[Tensor], MaskedBatch]
"""Function that returns the masks of some windows (n,), window by window."""


@dataclass
class TextScoring:
    """Scores texts by one model as the spec asks."""

    spec: TextScores
    texts: Texts
    model: MaskedLm
    masker: Masker
    state: RunState
    labels: Labels
    _columns: dict[TextScore, ScoreColumn] = field(default_factory=dict)

    @property
    def _sizes(self) -> Tensor:
        return self.texts.corpus.sizes

    def total_masks(self) -> int:
        """Return the maximum number of passes."""
        tokens = sum(score in OF_TOKENS for score in self.spec.scores) * int(self._sizes.sum())
        if "conditional" in self.spec.scores:
            tokens += int(self.texts.in_part.sum())
        unmasked = len(self.texts.windows.sizes) if "unmasked" in self.spec.scores else 0
        if "cumulative" in self.spec.scores:
            tokens += self._cumulative().passes(self.spec.max_masks)
        return tokens + unmasked

    def records(self, seed: int) -> Records[TextTable]:
        """Score the texts, and return their table."""
        cumulative = self._cumulative()
        singles = torch.ones_like(self.texts.words)  # each token is masked alone
        if "cumulative" in self.spec.scores:
            plan = cumulative.plan()
        for score in self.spec.scores:
            match score:
                case "pll":
                    yield from self._of_tokens(score, singles)
                case "pll_word_l2r":
                    yield from self._of_tokens(score, self._rest_of_words())
                case "conditional":
                    yield from self._of_tokens(score, singles, self.texts.in_part)
                case "unmasked":
                    yield from self._unmasked()
                case "cumulative":
                    yield from cumulative.run(plan, seed)
                    self._columns[score] = ScoreColumn(
                        cumulative.value,
                        cumulative.std_err,
                        cumulative.masks,
                        mask_errors=cumulative.mask_errors,
                        variances=cumulative.variances,
                    )
        if "cumulative" in self.spec.scores:
            yield Metric("masks", int(cumulative.masks.sum()), 0.0, self.labels)
            yield from self._target_records(cumulative)
        return TextTable(self.spec, self.texts, self._columns, self.labels)

    def _cumulative(self) -> CumulativeScores:
        target, max_masks = self.spec.target_std_err or 1.0, self.spec.max_masks
        options = self.texts.mask_groups, target, max_masks, self.spec.relative
        return CumulativeScores(self.model, self.masker, self.state, *options)

    def _target_records(self, cumulative: CumulativeScores) -> Iterator[Record]:
        is_over = cumulative.std_err > cumulative.target_of(cumulative.value)
        over = int(is_over.sum())
        yield Metric("texts_over_target", over, 0.0, self.labels)
        if over:
            is_at_maximum = bool(
                (is_over & (cumulative.masks > cumulative.max_masks - STRATA)).any()
            )
            advice = "raise max_masks" if is_at_maximum else "their scores vary more than at first"
            detail = f"a larger standard error than the target: {advice}"
            yield Log("warning", f"{over} of {len(cumulative.masks)} texts have {detail}")

    def _rest_of_words(self) -> Tensor:
        """Return how many tokens of its word follow each token, itself included, (ΣD,)."""
        words = torch.unique_consecutive(self.texts.words, return_counts=True)[1]
        ends = repeated(words.cumsum(0), words)
        return ends.sub_(torch.arange(len(ends)))

    def _of_tokens(
        self, score: TextScore, counts: Tensor, only: Tensor | None = None
    ) -> Records[None]:
        """Score each token, or only some (ΣD,). counts[i] tokens are masked, from the scored token
        on."""
        scored = torch.ones_like(counts, dtype=torch.bool) if only is None else only
        windows = self.texts.windows
        corpus, counts = windows.corpus, windows.limited(counts)
        passes = _count(scored, windows.sizes)

        def masks(chosen: Tensor) -> MaskedBatch:
            of = windows.tokens_of(chosen)
            of = of[scored[of]]
            positions = corpus.free[counted_from(windows.tokens[of], counts[of])]
            sequences = chosen.repeat_interleave(passes[chosen])
            return self.masker.hidden(sequences, counts[of], positions)

        values = yield from self._scored(masks, passes, row=1)  # log p of the first masked
        of_tokens = values.new_full(scored.shape, math.nan).masked_scatter(scored, values)
        sizes = _count(scored, self._sizes)
        sums = torch.segment_reduce(values, "sum", lengths=sizes)
        tokens = None if only is None else sizes
        self._columns[score] = ScoreColumn(sums, of_tokens=of_tokens, tokens=tokens)

    def _unmasked(self) -> Records[None]:
        """Score all tokens of each window in one pass that masks none."""
        windows = self.texts.windows
        corpus = windows.corpus

        def visible(chosen: Tensor) -> MaskedBatch:
            sizes = windows.sizes[chosen]
            positions = corpus.free[windows.tokens[windows.tokens_of(chosen)]]
            ids = corpus.ids[corpus.offsets[chosen].repeat_interleave(sizes) + positions]
            return MaskedBatch(corpus, chosen, sizes, positions, ids)

        means = yield from self._scored(visible, torch.ones_like(windows.sizes), row=0)
        sums = torch.segment_reduce(means * windows.sizes, "sum", lengths=windows.counts)
        self._columns["unmasked"] = ScoreColumn(sums)

    def _scored(self, masks: MaskFunction, passes: Tensor, row: int) -> Records[Tensor]:
        """Return a row of the scores of all windows, each with passes[i] masks: (Σ passes,)."""
        scores = []
        taken = (passes * self.texts.windows.corpus.lengths).cumsum(0) // CHUNK_TOKENS
        parts = torch.unique_consecutive(taken, return_counts=True)[1].tolist()
        chosen = torch.split(torch.arange(len(passes)), parts)
        batches = ((masks(windows), None) for windows in chosen)
        for scored in score_batches({"model": self.model}, batches, self.state):
            if isinstance(scored, ScoredBatch):
                scores.append(scored.values[0, row])
            else:
                yield scored
        return torch.cat(scores)


def _count(marked: Tensor, sizes: Tensor) -> Tensor:
    """Return the number of marked elements in each of consecutive parts of these sizes."""
    return torch.segment_reduce(marked.double(), "sum", lengths=sizes).long()

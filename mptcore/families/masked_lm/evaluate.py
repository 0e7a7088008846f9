"""Scoring language models on a corpus, and the records that tell of it."""

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mptcore.estimation.evaluate import Work
from mptcore.estimation.scores import ONE_DRAW
from mptcore.families.masked_lm import estimates
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.estimates import Estimate, RateScores
from mptcore.families.masked_lm.masked_batch import CHUNK_TOKENS, Draws, Masker, joined
from mptcore.families.masked_lm.model import MaskedLm, Scoring, score
from mptcore.families.masked_lm.target import Sampled, sample_to_target
from mptcore.protocol.records import Labels, Log, Metric, Point, Record, RunError
from mptcore.runtime.session import Tape
from mptcore.specs import TextEvaluate

DIFFERENCE = "difference"


@dataclass
class TextEvaluation:
    """The models that are scored on the same masks: the model, and the baseline if there is one."""

    spec: TextEvaluate
    models: Mapping[str, MaskedLm]
    masker: Masker
    labels: Labels
    tape: Tape
    done: int = 0
    _areas: dict[str, Estimate] = field(default_factory=dict)

    @property
    def corpus(self) -> Corpus:
        return self.masker.corpus

    @property
    def total(self) -> int:
        """Masks to be scored, at most."""
        return total_masks(self.spec, self.corpus)

    @property
    def rows(self) -> list[str]:
        """The models and, of two, their difference."""
        return [*self.models, *([DIFFERENCE] if len(self.models) > 1 else [])]

    def records(self, generator: torch.Generator) -> Work:
        """Scores, and what follows from them; masks are drawn from the generator."""
        if self.spec.target_std_err is None:
            yield from self._curve(generator)
        else:
            yield from self._curve_to_target(generator, self.spec.target_std_err)
        if self.spec.orders or self.spec.pll:
            yield from self._of_sequences(generator)

    def _curve(self, generator: torch.Generator) -> Work:
        rates, n = self.spec.masks.rates, len(self.corpus)
        widths = estimates.cell_widths(rates)
        variance = torch.zeros(len(self.rows), dtype=torch.float64)
        of_sequences = torch.zeros(len(self.rows), n, dtype=torch.float64)
        mean = torch.zeros(len(self.rows), dtype=torch.float64)
        known = True
        held: list[RateScores] = []  # the rate that is told of, between its neighbours
        told = 0

        def tell(own: RateScores, width: float, neighbours: list[RateScores]) -> Iterator[Record]:
            nonlocal known
            found = own.within()
            if found is None:
                found = estimates.variance_of_one_mask(own, neighbours)
            if found is None:
                known = False
            else:
                variance.add_(found * width**2)
            mean.add_(own.means() * width)
            of_sequences.add_(own.residuals() * width)
            errors = [None] * len(self.rows) if found is None else found.sqrt().tolist()
            for name, value, error in zip(self.rows, own.means().tolist(), errors, strict=True):
                yield self._point(name, own.rate, Estimate(value, error), own.n)

        for scores in self._rates(generator):
            if isinstance(scores, int):
                self.done += scores
                yield self.done, None
                continue
            if scores.total == 0:
                detail = f"at the rate {scores.rate} no token was drawn: raise per_size or n"
                raise RunError("invalid", f"the text is too short for its masks: {detail}")
            held.append(scores)
            if len(held) < 2:
                continue
            neighbours = [held[-1]] if len(held) == 2 else [held[-3], held[-1]]
            for record in tell(held[-2], widths[told], neighbours):
                yield self.done, record
            told += 1
            held = held[-2:]
        for record in tell(held[-1], widths[told], held[:-1]):
            yield self.done, record
        spread = (of_sequences.square().sum(1) * n / max(1, n - 1)).sqrt()
        for i, name in enumerate(self.rows):
            error = math.sqrt(variance[i].item()) if known else None
            among = spread[i].item() if n > 1 else None
            for record in self._area(name, Estimate(mean[i].item(), error), sum(widths), among):
                yield self.done, record

    def _rates(self, generator: torch.Generator) -> Iterator[RateScores | int]:
        """The scores at each rate, and between them how many masks were scored more."""
        spec, n = self.spec.masks, len(self.corpus)
        per_rate = spec.per_size * n
        longest = int(self.corpus.lengths.max())
        together = max(1, CHUNK_TOKENS // longest)
        masks = len(spec.rates) * per_rate
        rates = torch.tensor(spec.rates, dtype=torch.float64)
        sums: list[Tensor] = []
        weights: list[Tensor] = []
        ended = 0
        for start in range(0, masks, together):
            places = torch.arange(start, min(start + together, masks))
            at = rates[places // per_rate]
            draws, own = self.masker.at_rates(places % n, at, generator)
            values = yield from self._scored(draws)
            sums.append(self.masker.weighted(values[:, 0], draws, own))
            weights.append(own)
            have = sum(map(len, weights))
            if have < per_rate:
                continue
            all_sums, all_weights = torch.cat(sums, 1), torch.cat(weights)
            whole = have // per_rate
            for i in range(whole):
                part = slice(i * per_rate, (i + 1) * per_rate)
                of_rate = all_sums[:, part].reshape(len(self.rows), spec.per_size, n)
                weight = all_weights[part].reshape(spec.per_size, n)
                yield RateScores(spec.rates[ended + i], of_rate, weight)
            ended += whole
            sums, weights = [all_sums[:, whole * per_rate :]], [all_weights[whole * per_rate :]]

    def _scored(self, draws: Draws) -> Scoring:
        values = yield from score(self.models, draws, self.tape)
        if len(self.models) > 1:
            values = torch.cat([values, values[:1] - values[1:2]])
        return values

    def _curve_to_target(self, generator: torch.Generator, target: float) -> Work:
        spec = self.spec
        factor = spec.dimensions
        sampler = sample_to_target(
            self.masker, spec.masks.rates, target / factor, spec.max_masks, generator, self._scored
        )
        state: Sampled | None = None
        before = self.done
        for found in sampler:
            if isinstance(found, int):
                self.done += found
                yield self.done, None
            else:
                state = found
        assert state is not None
        used = self.done - before
        self.done = before + spec.max_masks
        widths = sum(estimates.cell_widths(spec.masks.rates))
        for k, rate in enumerate(spec.masks.rates):
            for i, name in enumerate(self.rows):
                value = Estimate(state.means[i, k].item(), state.std_errs[i, k].item())
                yield self.done, self._point(name, rate, value, int(state.counts[k]))
        for i, name in enumerate(self.rows):
            own = Estimate(state.area[i].item(), state.area_std_err[i].item())
            for record in self._area(name, own, widths, None):
                yield self.done, record
        yield self.done, Metric("masks", used, 0.0, self.labels)
        if state.area_std_err[0].item() * factor > target:
            detail = f"{state.area_std_err[0].item() * factor:.3g} after {used} masks"
            message = f"target_std_err {target} was not reached: {detail}: raise max_masks"
            yield self.done, Log("warning", message)

    def _area(
        self, name: str, mean: Estimate, width: float, among: float | None
    ) -> Iterator[Record]:
        """What follows from the area for a sequence of one token, its Monte Carlo error, and that
        over the population of sequences."""
        factor = self.spec.dimensions
        yield self._metric("area", name, mean.scaled(factor))
        population = Estimate(mean.mean, among).scaled(factor)
        reason = "sequences were sampled, or there is one"
        yield self._metric("area", name, population, "_population", reason)
        yield from self._rates_of_text(name, mean.scaled(1 / width), "area")

    def _rates_of_text(self, name: str, score: Estimate, of: str) -> Iterator[Record]:
        """Bits per token and perplexity from a mean log probability of a token."""
        if name == DIFFERENCE:
            return
        labels = {**self._labels_of(name), "of": of}
        nats = score.scaled(-1)
        bits, perplexity = nats.scaled(1 / math.log(2)), nats.exponential()
        yield _metric("bits_per_token", bits, labels)
        yield _metric("perplexity", perplexity, labels)

    def _of_sequences(self, generator: torch.Generator) -> Work:
        """What takes as many masks of a sequence as it has tokens."""
        n = len(self.corpus)
        chosen = torch.arange(n)
        if self.spec.sequences is not None and self.spec.sequences < n:
            chosen = torch.randperm(n, generator=generator)[: self.spec.sequences].sort().values
        sizes = self.corpus.sizes[chosen]
        if self.spec.orders:
            yield from self._orders(chosen, sizes, generator)
        if self.spec.pll:
            yield from self._pll(chosen, sizes)

    def _orders(self, chosen: Tensor, sizes: Tensor, generator: torch.Generator) -> Work:
        count, n = self.spec.orders, len(self.corpus)
        shape = (len(self.rows), count, len(chosen))
        cumulative = torch.zeros(shape, dtype=torch.float64)
        chain = torch.zeros(shape, dtype=torch.float64)
        plan = [(i, o) for i in range(len(chosen)) for o in range(count)]
        for group in self._groups(plan, sizes):
            parts = []
            for i, _ in group:
                order = torch.randperm(int(sizes[i]), generator=generator)
                parts.append(self.masker.along_order(int(chosen[i]), order))
            draws = joined(parts)
            values = yield from self._counted(draws)
            means = _split(values[:, 0] / draws.counts, parts)
            following = _split(values[:, 1], parts)
            for (i, o), own, steps in zip(group, means, following, strict=True):
                cumulative[:, o, i] = own.sum(1)
                chain[:, o, i] = steps.sum(1)
        for row, name in enumerate(self.rows):
            noise = cumulative[row].var(0) / count if count > 1 else None
            yield from self._told("cumulative", name, cumulative[row].mean(0), noise, sizes, n)
            if name == DIFFERENCE or count < 2:
                continue
            variances = chain[row].var(0)
            spread = estimates.spread(variances)
            yield self.done, self._metric("any_order_spread", name, spread)
            per_token = estimates.spread(variances / sizes.double().square())
            yield self.done, self._metric("any_order_spread_per_token", name, per_token)

    def _pll(self, chosen: Tensor, sizes: Tensor) -> Work:
        found = torch.zeros(len(self.rows), len(chosen), dtype=torch.float64)
        plan = [(i, 0) for i in range(len(chosen))]
        for group in self._groups(plan, sizes):
            parts = [self.masker.singles(int(chosen[i])) for i, _ in group]
            values = yield from self._counted(joined(parts))
            split = _split(values[:, 0], parts)
            for (i, _), own in zip(group, split, strict=True):
                found[:, i] = own.sum(1)
        for row, name in enumerate(self.rows):
            exact = torch.zeros(len(chosen), dtype=torch.float64)
            yield from self._told("pll", name, found[row], exact, sizes, len(self.corpus))

    def _told(
        self, metric: str, name: str, values: Tensor, noise: Tensor | None, sizes: Tensor, n: int
    ) -> Work:
        """A score of whole sequences: its mean, that over the population, and per token."""
        yield self.done, self._metric(metric, name, estimates.finite_mean(values, noise, n))
        population = estimates.population_mean(values)
        yield self.done, self._metric(metric, name, population, "_population")
        token = estimates.per_token(values, noise, sizes, n)
        for record in self._rates_of_text(name, token, metric):
            yield self.done, record

    def _groups(
        self, plan: list[tuple[int, int]], sizes: Tensor
    ) -> Iterator[list[tuple[int, int]]]:
        """A plan of (chosen sequence, order), each D masks, in parts of about CHUNK_TOKENS."""
        group: list[tuple[int, int]] = []
        taken = 0
        for i, order in plan:
            size = int(sizes[i])
            if group and taken + size * size > CHUNK_TOKENS:
                yield group
                group, taken = [], 0
            group.append((i, order))
            taken += size * size
        yield group

    def _counted(self, draws: Draws) -> Generator[tuple[int, Record | None], None, Tensor]:
        """As _scored, told as work."""
        scoring = self._scored(draws)
        while True:
            try:
                self.done += next(scoring)
            except StopIteration as end:
                values: Tensor = end.value
                return values
            yield self.done, None

    def _labels_of(self, name: str) -> Labels:
        """The label `model` only tells models apart."""
        if len(self.models) == 1 or name == DIFFERENCE:
            return self.labels
        return {**self.labels, "model": name}

    def _point(self, name: str, rate: float, value: Estimate, n: int) -> Point:
        series = "score_difference" if name == DIFFERENCE else "score_by_rate"
        reason = ONE_DRAW if value.std_err is None else None
        return Point(series, rate, value.mean, value.std_err, n, self._labels_of(name), reason)

    def _metric(
        self, metric: str, name: str, value: Estimate, suffix: str = "", reason: str = ONE_DRAW
    ) -> Metric:
        difference = "_difference" if name == DIFFERENCE else ""
        return _metric(f"{metric}{difference}{suffix}", value, self._labels_of(name), reason)


def total_masks(spec: TextEvaluate, corpus: Corpus) -> int:
    """Masks scored for one curve and what follows from it, at most."""
    curve = len(spec.masks.rates) * spec.masks.per_size * len(corpus)
    if spec.target_std_err is not None:
        curve = spec.max_masks
    sizes = corpus.sizes.double()
    share = 1.0 if spec.sequences is None else min(1.0, spec.sequences / len(corpus))
    return curve + int((spec.orders + spec.pll) * share * sizes.sum().item())


def _split(values: Tensor, parts: list[Draws]) -> tuple[Tensor, ...]:
    """What of (rows, B) belongs to each part."""
    return torch.split(values, [len(part) for part in parts], 1)


def _metric(name: str, value: Estimate, labels: Labels, reason: str = ONE_DRAW) -> Metric:
    said = reason if value.std_err is None else None
    return Metric(name, value.mean, value.std_err, labels, said)

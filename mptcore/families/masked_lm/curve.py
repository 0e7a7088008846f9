"""The score as a function of the masking rate, rate by rate."""

from collections.abc import Iterator, Sequence

from mptcore.estimation.estimate import Estimate
from mptcore.families.masked_lm.estimates import FAR_APART, Area, RateScores, Report, cell_widths
from mptcore.protocol.records import Record, RunError


class RateCurve:
    """Collects the scores rate by rate. The error at a rate uses its neighbours on both sides, so
    its points are emitted after the next rate was added."""

    def __init__(self, report: Report, rates: Sequence[float], sequences: int, tokens: int):
        self.report, self.tokens = report, tokens
        self._widths = cell_widths(rates)
        self._area = Area(len(report.model_names), sequences)
        self._held: list[RateScores] = []  # the last rates, three at most
        self._next_index = 0  # of the rate whose points come next

    def add(self, scores: RateScores) -> Iterator[Record]:
        """Add the scores of the next rate, and yield the records that are now complete."""
        if scores.total == 0:
            detail = f"at the rate {scores.rate} no token was drawn: raise per_size or n"
            raise RunError("invalid", f"the text is too short for its masks: {detail}")
        self._held = [*self._held[-2:], scores]
        if len(self._held) > 1:
            *before, ready, after = self._held
            yield from self._emit(ready, [*before, after])

    def end(self) -> Iterator[Record]:
        """Yield the remaining records after all rates."""
        *before, last = self._held
        yield from self._emit(last, before[-1:])
        for model, name in enumerate(self.report.model_names):
            area, population = self._area.estimate(model), self._area.population(model)
            width = sum(self._widths)
            yield from self.report.area(name, area, width, self.tokens, population, FAR_APART)

    def _emit(self, scores: RateScores, neighbours: list[RateScores]) -> Iterator[Record]:
        variance = scores.variance(neighbours)
        self._area.add(scores, variance, self._widths[self._next_index])
        self._next_index += 1
        for model, name in enumerate(self.report.model_names):
            mean = scores.means()[model].item()
            if variance is None:
                estimate = Estimate(mean, None, scores.n)
            else:
                estimate = variance.estimate(mean, scores.n, model)
            yield self.report.point(name, scores.rate, estimate, FAR_APART)

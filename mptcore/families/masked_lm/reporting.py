"""Names of the models, and of their difference, in the points and metrics of an evaluation."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mptcore.estimation.estimate import ONE_DRAW, Estimate, metric, point
from mptcore.protocol.records import Labels, Metric, Point, Record, SeriesName

DIFFERENCE = "difference"


@dataclass(frozen=True)
class Report:
    """Builds the records of an evaluation of some models."""

    models: tuple[str, ...]
    labels: Labels

    @property
    def model_names(self) -> list[str]:
        """Names of the models and, for two models, of their difference: the first dimension of
        scores."""
        return [*self.models, *([DIFFERENCE] if len(self.models) > 1 else [])]

    def labels_of(self, name: str) -> Labels:
        """Return the labels of a model's series, with the label `model` if there are several."""
        if len(self.models) == 1 or name == DIFFERENCE:
            return self.labels
        return {**self.labels, "model": name}

    def point(self, name: str, rate: float, score: Estimate, reason: str = ONE_DRAW) -> Point:
        """Return a model's score at a masking rate as a point. `reason` says why it has no standard
        error, if it has none."""
        series: SeriesName = "score_difference" if name == DIFFERENCE else "score_by_rate"
        return point(series, rate, score, self.labels_of(name), reason=reason)

    def interim_points(
        self, rate: float, scored: int, scores: Sequence[Estimate]
    ) -> Iterator[Point]:
        """Yield the models' interim scores at a rate after `scored` masks."""
        for name, score in zip(self.models, scores, strict=False):
            labels: Labels = {**self.labels_of(name), "rate": rate}
            yield point("score_by_rate_interim", scored, score, labels)

    def metric(
        self, of: str, name: str, value: Estimate, suffix: str = "", reason: str = ONE_DRAW
    ) -> Metric:
        """Return a metric of a model. `reason` says why it has no standard error, if it has
        none."""
        difference = "_difference" if name == DIFFERENCE else ""
        return metric(f"{of}{difference}{suffix}", value, self.labels_of(name), reason)

    def area(
        self,
        name: str,
        area: Estimate,
        width: float,
        tokens: int,
        population: Estimate,
        reason: str = ONE_DRAW,
    ) -> Iterator[Record]:
        """Yield the metrics of an area. `area` is for a sequence of one token over rates of a total
        `width`. The metrics are the area for `tokens` tokens with its Monte Carlo error and with
        the error over the population. `reason` says why the former is missing, if it is."""
        if name == self.models[0]:
            yield Metric("area_width", width, 0.0, self.labels)
        sampled = "sequences were sampled, or there is one"
        yield self.metric("area", name, area.scaled(tokens), reason=reason)
        yield self.metric("area", name, population.scaled(tokens), "_population", sampled)
        yield from self.per_token(name, area.scaled(1 / width), "area", reason)

    def per_token(
        self, name: str, score: Estimate, of: str, reason: str = ONE_DRAW
    ) -> Iterator[Record]:
        """Yield bits per token and perplexity from the mean log probability of a token."""
        if name == DIFFERENCE:
            return
        labels = {**self.labels_of(name), "of": of}
        nats = score.scaled(-1)
        yield metric("bits_per_token", nats.scaled(1 / math.log(2)), labels, reason)
        yield metric("perplexity", nats.exponential(), labels, reason)

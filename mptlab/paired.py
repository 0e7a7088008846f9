"""Compare the scores of the same texts by two models, text by text."""

import math
import os
from collections.abc import Iterator, Sequence
from statistics import stdev
from typing import Any

from mptlab.curves import needed
from mptlab.errors import Json
from mptlab.tables import with_error
from mptlab.texts import Texts

ERROR = "_std_err"


class Paired(list[Json]):
    """A row for each text with a difference of a score between two models, `second - first`:
    `row`, `text`, the score by each model, `difference` and its `difference_std_err`, or None if
    the scores are exact."""

    def __init__(self, scored: tuple[Texts, Texts], models: tuple[str, str], score: str):
        first, second = scored
        self.models, self.score = models, score
        self.names = tuple(f"{score} of {model}" for model in models)
        self.have_same_tokens = all(
            a.get("tokens") == b.get("tokens") for a, b in zip(first, second, strict=True)
        )
        super().__init__(
            self._row(a, b)
            for a, b in zip(first, second, strict=True)
            if a[score] is not None and b[score] is not None
        )

    def _row(self, a: Json, b: Json) -> Json:
        errors = [error for row in (a, b) if (error := row.get(f"{self.score}{ERROR}")) is not None]
        error = math.hypot(*errors) if errors else None
        scores = dict(zip(self.names, (a[self.score], b[self.score]), strict=True))
        of_text = {"row": a["row"], "text": a["text"], **scores}
        difference = b[self.score] - a[self.score]
        return {**of_text, "difference": difference, f"difference{ERROR}": error}

    @property
    def total(self) -> tuple[float, float | None]:
        """The sum of the differences, in nats, and its standard error over the choice of the texts,
        in which the errors of the scores are contained. None for a single text."""
        differences = [row["difference"] for row in self]
        spread = math.sqrt(len(self)) * stdev(differences) if len(self) > 1 else None
        return math.fsum(differences), spread

    def lines(self) -> Iterator[str]:
        """Yield what the differences show, as sentences."""
        total, error = self.total
        better = sum(row["difference"] > 0 for row in self)
        first, second = self.models
        yield f"sum of the differences, {second} minus {first}: {with_error(total, error)} nats"
        yield f"{second} scores {better} of {len(self)} texts higher"
        if error is not None:
            yield "± is the standard error over the choice of the texts"
        if not self.have_same_tokens:
            yield "the models split the texts into other tokens, over which the scores are sums"

    def plot(self, file: str | os.PathLike[str] | None = None) -> Any:
        """Return a matplotlib figure of the differences from the lowest to the highest. With
        `file`, also save it in the format of its suffix."""
        needed("matplotlib", "plots")
        from mptlab import plots

        rows = sorted(self, key=lambda row: float(row["difference"]))
        errors: Sequence[float | None] = [row[f"difference{ERROR}"] for row in rows]
        first, second = self.models
        label = f"{self.score}: {second} − {first}, nats"
        figure = plots.differences([row["difference"] for row in rows], errors, label)
        if file is not None:
            plots.save(figure, file)
        return figure

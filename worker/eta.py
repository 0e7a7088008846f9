"""When a run will be done, by how long its work has taken so far.

The time d of a piece of work w is taken for μ w and noise of the variance σ² w. Older pieces have
smaller weights k, since the parts of a run differ: μ = Σkd / Σkw has the variance σ² Σk²w / (Σkw)²,
and Σ k (d − μ w)² / w comes to σ² (Σk − Σk²w / Σkw). What is left, W, takes μ W, with the variance
σ² W + σ² W² Σk²w / (Σkw)².
"""

import math
from dataclasses import dataclass

from service.records.recording import Eta

MIN_S = 0.2
"""Minimum duration of a piece. Shorter ones are joined, because the time of reading a record says
little about the time of writing it."""
MIN_PIECES = 3
HALF = 0.05
"""Share of the whole work after which the weight of an older piece is halved."""


@dataclass
class EtaEstimate:
    """Pace of one attempt since its first progress record. Time spent on loading before it does not
    count."""

    _at: float | None = None
    _done: int = 0
    _pieces: int = 0
    _weights: float = 0.0
    _work: float = 0.0
    _work2: float = 0.0
    """Sum of the squared weights."""
    _time_s: float = 0.0
    _squares: float = 0.0

    def eta(self, done: int, total: int, at: float) -> Eta | None:
        """Return how many seconds the whole work still needs, or None if that is not known yet."""
        if self._at is None:
            self._at, self._done = at, done
        elif done > self._done and at - self._at >= MIN_S:
            self._add(done - self._done, at - self._at, total)
            self._at, self._done = at, done
        if self._pieces < MIN_PIECES:
            return None
        left = max(0, total - done)
        noise = max(0.0, self._squares - self._time_s**2 / self._work)
        variance = noise / (self._weights - self._work2 / self._work)
        error = math.sqrt(variance * left * (1 + left * self._work2 / self._work**2))
        return Eta(self._time_s / self._work * left, error)

    def _add(self, work: int, time_s: float, total: int) -> None:
        kept = 0.5 ** (work / (HALF * max(total, work)))
        self._pieces += 1
        self._weights = kept * self._weights + 1
        self._work = kept * self._work + work
        self._work2 = kept**2 * self._work2 + work
        self._time_s = kept * self._time_s + time_s
        self._squares = kept * self._squares + time_s**2 / work

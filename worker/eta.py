"""Expected end of a run, from how long its latest work has taken."""

from dataclasses import dataclass

MIN_S = 0.2
"""Minimum duration of a piece. Shorter ones are joined, because the time of reading a record says
little about the time of writing it."""
MIN_PIECES = 3
ENOUGH_S = 3.0
"""Duration of fewer pieces that is enough, too."""
HALF = 0.05
"""Share of the whole work after which the weight of an older piece is halved."""


@dataclass
class EtaEstimate:
    """Pace of one attempt since its first progress record. Time spent on loading before it does not
    count. The estimate has no error: the spread of past pieces says nothing about a changing
    pace."""

    _at: float | None = None
    _done: int = 0
    _pieces: int = 0
    _work: float = 0.0
    """Weighted work of all pieces; older pieces have smaller weights."""
    _time_s: float = 0.0
    """Weighted duration of all pieces."""

    def eta_s(self, done: int, total: int, at: float) -> float | None:
        """Return how many seconds the whole work still needs, or None if that is not known yet."""
        if self._at is None or done == 0:  # at 0 a model is fitted, before its first mask
            self._at, self._done = at, done
        elif done > self._done and at - self._at >= MIN_S:
            self._add(done - self._done, at - self._at, total)
            self._at, self._done = at, done
        if self._pieces < MIN_PIECES and self._time_s < ENOUGH_S:
            return None
        return self._time_s / self._work * max(0, total - done)

    def _add(self, work: int, time_s: float, total: int) -> None:
        kept = 0.5 ** (work / (HALF * max(total, work)))
        self._pieces += 1
        self._work = kept * self._work + work
        self._time_s = kept * self._time_s + time_s

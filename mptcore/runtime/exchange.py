"""Exchange of a divided run with other processes, by records and orders that the supervisor passes
on.

Records and orders may be lost. The coordinator computes batches itself in the end if their claims
or scores are lost."""

import base64
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mptcore.protocol.orders import Order, SentScores
from mptcore.protocol.records import BatchClaim, BatchPlan, BatchScores, DivisionStart, Record
from mptcore.runtime.division import MAX_AHEAD

SPAN_S = 2.0
"""Approximate duration of the work of one claim, in seconds."""
MAX_SPAN = 16
"""Maximum number of batches of a claim: the coordinator draws the masks of all of them too."""
ANSWER_S = 0.2
"""Seconds to wait for an answer of the supervisor. Then the run does something else."""
MAX_SCORES = 2**18
"""Maximum number of scores of a batch that is sent, so that its record is short enough for a
line. The coordinator computes larger batches itself."""


@dataclass
class Exchange:
    """The exchange of this process. `obey` may be called from any thread, everything else only from
    the thread that computes."""

    helps: bool
    emit: Callable[[Record], None]
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_requested: bool = False
    """True after the supervisor of a coordinator has asked it to share its work."""
    _is_divided: bool = False
    _is_claiming: bool = False
    _is_unanswered: bool = False
    """True if the last claim of a coordinator was not answered in time. It does not wait again
    before an answer arrives: the supervisor may be without a database."""
    _spans: deque[range] = field(default_factory=deque)
    _scores: dict[int, Tensor] = field(default_factory=dict)
    _plans: dict[int, Tensor] = field(default_factory=dict)
    _claimed_at: float | None = None
    _batch_s: float = SPAN_S
    """Approximate time for a batch, in seconds."""

    def obey(self, order: Order) -> None:
        """Apply an order."""
        with self._changed:
            self._is_requested |= order.divide is not None
            if order.span is not None:
                first, count = order.span
                self._spans.append(range(first, first + count))
                self._is_claiming = self._is_unanswered = False
            for one in order.scores:
                self._scores[one.number] = decoded(one)
            for plan in order.plans:
                self._plans[plan.number] = torch.tensor(plan.values)
            self._changed.notify_all()

    def claim(self, least: int) -> int | None:
        """Return the first batch from number `least` on that this process is to compute."""
        self._measure()
        with self._changed:
            if not self.helps and not self._is_divided:
                if not self._is_requested:
                    return least
                self._divide(least)
            while self._spans and self._spans[0].stop <= least:
                self._spans.popleft()
            if sum(span.stop - max(span.start, least) for span in self._spans) <= 1:
                self._request_claim()
            if not self._spans and not self._is_unanswered:
                answered = self._changed.wait_for(lambda: bool(self._spans), ANSWER_S)
                self._is_unanswered = not answered and not self.helps
            return next((max(least, span.start) for span in self._spans if span.stop > least), None)

    def found(self, number: int) -> Tensor | None:
        """Return the scores of a batch from a helper. Scores of much earlier batches are forgotten,
        because these were computed here. Those of the last MAX_AHEAD batches may still be needed:
        they may have arrived after their batch was last looked for."""
        if not self._scores:
            return None
        with self._changed:
            for old in [one for one in self._scores if one <= number - MAX_AHEAD]:
                del self._scores[old]
            return self._scores.pop(number, None)

    def put(self, number: int, scores: Tensor) -> None:
        """Send scores to the coordinator, unless they are too many for a line."""
        if scores.numel() <= MAX_SCORES:
            self.emit(encoded(number, scores))

    def plan(self, number: int, compute: Callable[[], Tensor]) -> Tensor | None:
        """Return a plan. A coordinator computes and publishes it; a helper waits for the published
        one."""
        if not self.helps:
            found = self._plans[number] = compute()
            if self._is_divided:
                self.emit(BatchPlan(number, found.tolist()))
            return found
        with self._changed:
            self._changed.wait_for(lambda: number in self._plans, ANSWER_S)
            return self._plans.get(number)

    def _divide(self, least: int) -> None:
        """Begin to share the work. The batches up to the next two are computed here."""
        first = least + 2
        self._spans.append(range(least, first))
        self._is_divided = True
        self.emit(DivisionStart(first))
        for number, plan in self._plans.items():
            self.emit(BatchPlan(number, plan.tolist()))

    def _request_claim(self) -> None:
        if not self._is_claiming:
            self._is_claiming = True
            self.emit(BatchClaim(min(MAX_SPAN, max(1, round(SPAN_S / self._batch_s)))))

    def _measure(self) -> None:
        """Measure the time from one claim to the next."""
        at = time.monotonic()
        if self._claimed_at is not None:
            self._batch_s = max(1e-3, 0.7 * self._batch_s + 0.3 * (at - self._claimed_at))
        self._claimed_at = at


def encoded(number: int, scores: Tensor) -> BatchScores:
    """Return scores (models, rows, B) as a record."""
    data = base64.b64encode(scores.contiguous().numpy().astype("<f8").tobytes()).decode()
    return BatchScores(number, list(scores.shape), data)


def decoded(sent: SentScores) -> Tensor:
    """Return the scores (models, rows, B) of an order."""
    data = torch.frombuffer(bytearray(base64.b64decode(sent.data)), dtype=torch.float64)
    return data.view(*sent.shape)

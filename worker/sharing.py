"""The supervisor's part in a divided run: it stores the requests of its runner in the database, and
reads the answers."""

from typing import Any

from sqlalchemy.orm import Session

from service.queue import division, helping
from service.queue.lease import Claim
from worker.runner import Record, Runner


class Sharing:
    """Requests are kept until a transaction that contains them is committed. Repeating them is
    harmless."""

    def __init__(self, claim: Claim, max_workers: int):
        self._run = claim.experiment_id, claim.attempt
        self._may_divide = max_workers > 1
        self._first: int | None = None
        self._is_divided = False
        self._is_requested = False
        self._count: int | None = None
        self._plans: list[dict[str, Any]] = []
        self._is_new = False
        """True if the last request was not tried yet."""
        self._is_stored = False
        """True if this transaction contains the claim and the plans."""
        self._orders: list[dict[str, Any]] = []

    @property
    def is_urgent(self) -> bool:
        """True if the runner waits for an answer to a new request."""
        return self._is_new

    @property
    def is_divided(self) -> bool:
        """True if helpers may send scores."""
        return self._is_divided

    def take(self, line: Record) -> None:
        """Keep a request of the runner."""
        self._is_new |= line["record"] != "plan"
        match line["record"]:
            case "division":
                self._first = int(line["next"])
            case "claim":
                self._count = int(line["count"])
            case "plan":
                self._plans.append({"number": int(line["number"]), "values": line["values"]})

    def exchange(self, session: Session) -> None:
        """Store the requests and read the answers, in the transaction of the run's fence. Requests
        wait while a helper has locked the claims."""
        self._orders, self._is_new, self._is_stored = [], False, False
        if not self._is_divided and self._first is None:
            may_ask = self._may_divide and not self._is_requested
            if may_ask and helping.has_helper(session, *self._run):
                self._orders.append({"divide": True})
            return
        if self._first is not None:
            division.begin(session, *self._run, self._first)
        if self._plans or self._count is not None:
            self._is_stored = division.is_free(session, self._run[0])
        if self._plans and self._is_stored:
            division.publish_plans(session, *self._run, self._plans)
        if self._count is not None and self._is_stored:
            first = division.claim_span(session, *self._run, self._count)
            if first is not None:
                self._orders.append({"span": [first, self._count]})
        if scores := division.take_scores(session, *self._run):
            self._orders.append({"scores": scores})

    def answer(self, runner: Runner) -> None:
        """Send the answers to the runner, after the transaction is committed."""
        for order in self._orders:
            self._is_requested |= "divide" in order
            runner.order(order)
        if self._is_divided or self._first is not None:
            self._is_divided, self._first = True, None
        if self._is_stored:
            self._count, self._plans = None, []
        self._orders, self._is_stored = [], False

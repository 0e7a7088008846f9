"""A local worker, a controller or an API that exits at a durable step: just before the transaction
of that step commits, or just after."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session

from service.db.engine import Database
from service.experiments.models import Queue
from service.experiments.schemas import Submission
from service.queue import claims, lease, ledger, sizes
from service.records import compaction, recording
from service.settings import Settings
from tests.support import stored
from tests.support.ppca_spec import ppca_spec
from tests.support.records import CHECKPOINT_AFTER
from tests.support.stub import stub
from worker import supervisor
from worker.controller import Controller
from worker.main import Worker
from worker.slot import Slot

EXIT = 77

FUNCTIONS = {
    "claim": (claims, "claim"),
    "finish": (lease, "finish"),
    "release": (lease, "release"),
    "mark_lost": (lease, "mark_lost"),
    "expire": (lease, "expire"),
    "fold": (ledger, "fold"),
    "measure": (sizes, "measure"),
}
"""Module and function of each step but `record` and `checkpoint`."""
RETURN_NOTHING = ("finish", "fold", "measure")
BACKGROUND = ("expire", "fold", "measure")
"""Steps of the controller. A run whose worker is gone leads to them."""
STEPS = (*FUNCTIONS, "record", "checkpoint")
"""Every transaction of a run; `submit` is the API's."""

_reached = threading.local()


def exit_at(step: str, when: str) -> None:
    """Make this process exit at a step, before or after its commit."""
    begin = Database.transaction

    @contextmanager
    def transaction(self: Database) -> Iterator[Session]:
        _reached.steps = set()
        with begin(self) as session:
            yield session
            if when == "before" and step in _reached.steps:
                os._exit(EXIT)
        if when == "after" and step in _reached.steps:
            os._exit(EXIT)

    Database.transaction = transaction  # type: ignore[method-assign]
    for name, (module, function) in FUNCTIONS.items():
        setattr(module, function, _noting(name, getattr(module, function)))
    supervisor.record = _noting_record(supervisor.record)  # type: ignore[attr-defined]


def _noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        if found or name in RETURN_NOTHING:
            _reached.steps.add(name)
        return found

    return noting


def _noting_record(function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(session: Session, claim: Any, batch: Any, lease_s: float) -> Any:
        found = function(session, claim, batch, lease_s)
        if batch.size:
            _reached.steps.add("record")
        if batch.checkpoint and batch.checkpoint["after"] == CHECKPOINT_AFTER:
            _reached.steps.add("checkpoint")
        return found

    return noting


def submit(settings: Settings, when: str) -> None:
    """Submit as an API process does, and exit before or after the commit."""
    submission = Submission.model_validate({"spec": ppca_spec()})

    def before_commit() -> None:
        if when == "before":
            os._exit(EXIT)

    stored.sent(Database(settings.url), settings, submission, before_commit)
    os._exit(EXIT)


def main(settings: Settings, step: str, when: str, *options: str) -> None:
    """Run the worker; it never returns."""
    exit_at(step, when)
    if step in BACKGROUND:
        Controller(Database(settings.url), settings, None).run(threading.Event())
    # so that there are blocks to merge
    recording.BATCH_RECORDS, compaction.MANY, compaction.MANY_AT_END = 1, 2, 2
    Slot.new_runner = lambda self: stub(*options)  # type: ignore[method-assign]
    Worker(settings, Queue.CPU).run_locally()

"""Check that a storm leaves no false losses, false failures, or processes behind."""

import time
from collections.abc import Mapping, Sequence

import psutil
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Event, Experiment
from service.vocabulary import Status


def false_reaps(database: Database, blame: Sequence[tuple[float, str]]) -> int:
    """Number of attempts that were lost although nothing was done to their worker. `blame` has the
    time and the end of the worker's name for each disturbance."""
    with database.snapshot() as session:
        events = session.scalars(
            select(Event).where(Event.kind == "status").order_by(Event.id)
        ).all()
    began: dict[tuple[str, int], tuple[float, str]] = {}
    false = 0
    for event in events:
        if event.data["status"] == "running":
            key = (event.experiment_id, event.data["attempt"])
            began[key] = (event.at, event.data["worker"])
        elif "lost_attempt" in event.data:
            attempt = event.data["lost_attempt"]
            at, worker = began[event.experiment_id, attempt]
            if not any(worker.endswith(who) and at - 30 <= when <= event.at for when, who in blame):
                false += 1
                say(f"false reap of {worker}: {event.data}, {at:.1f} to {event.at:.1f}")
    return false


def false_failures(
    database: Database,
    kinds: Mapping[str, str],
    may_fail: Mapping[str, str],
    full: Sequence[tuple[float, float]],
) -> int:
    """Number of experiments that failed although their kind may not fail so, and that no stall
    explains. While the disk was `full`, no stall is an explanation."""
    with database.snapshot() as session:
        failed = session.scalars(select(Experiment).where(Experiment.status == Status.FAILED))
        false = [
            f"{one.id}: {one.failure_kind}: {one.failure_message}"
            for one in failed
            if one.failure_kind != may_fail.get(kinds.get(one.id, ""))
            and (
                "reported nothing" not in (one.failure_message or "")
                or any(began < (one.finished_at or 0) < ended for began, ended in full)
            )
        ]
    for line in false:
        say(f"false failure: {line}")
    return len(false)


def starts_within(database: Database, spans: Sequence[tuple[float, float]]) -> int:
    """Number of runs that started within these times."""
    with database.snapshot() as session:
        events = session.scalars(select(Event).where(Event.kind == "status")).all()
    starts = [event.at for event in events if event.data["status"] == "running"]
    return sum(began < at < ended for at in starts for began, ended in spans)


def processes_of(store: str) -> list[psutil.Process]:
    """Processes of this machine that use a store."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MPT_STORE") == store:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def say(text: str) -> None:
    """Print a line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)

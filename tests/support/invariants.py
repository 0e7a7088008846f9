"""The one checker of what the queue promises; every queue test calls it.

Every accepted experiment is there and has ended or is paused; its records are those of an
undisturbed run, each once; each claim began one attempt; nothing is left dispatched or leased.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database import Database
from service.experiments import store
from service.experiments.curves import read_series
from service.experiments.models import TERMINAL, Event, Experiment, Status
from service.experiments.recording import canonical

Record = Mapping[str, Any]
PointKey = tuple[Any, ...]


@dataclass
class Counts:
    """What was checked, and what was wrong: all but the first two must be zero."""

    experiments: int = 0
    records: int = 0
    lost_experiments: int = 0
    stuck_experiments: int = 0
    lost_records: int = 0
    doubled_records: int = 0
    wrong_records: int = 0
    doubled_attempts: int = 0

    @property
    def clean(self) -> bool:
        return not any(v for k, v in asdict(self).items() if k not in ("experiments", "records"))

    def __str__(self) -> str:
        return ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in asdict(self).items())


def check(
    database: Database, undisturbed: Mapping[str, Sequence[Record]], *, settled: bool = True
) -> Counts:
    """Check the experiments named in `undisturbed`, each against the records of a run of its spec
    that nothing disturbed. Unless `settled`, experiments may still be under way."""
    counts = Counts()
    with database.snapshot() as session:
        for experiment_id, records in undisturbed.items():
            counts.experiments += 1
            experiment = session.get(Experiment, experiment_id)
            if experiment is None:
                counts.lost_experiments += 1
                continue
            _check_state(session, experiment, counts, settled)
            _check_records(session, experiment, records, counts)
    return counts


def _check_state(session: Session, experiment: Experiment, counts: Counts, settled: bool) -> None:
    ended = experiment.status in (*TERMINAL, Status.PAUSED)
    if settled and not ended:
        counts.stuck_experiments += 1
    leased = experiment.lease_expires_at is not None
    if leased != (experiment.status == Status.RUNNING):
        counts.stuck_experiments += 1
    events = session.scalars(
        select(Event.data).where(Event.experiment_id == experiment.id, Event.kind == "status")
    )
    attempts = [data["attempt"] for data in events if data["status"] == Status.RUNNING]
    if sorted(attempts) != list(range(1, experiment.attempt + 1)):
        counts.doubled_attempts += 1


def _check_records(
    session: Session, experiment: Experiment, records: Sequence[Record], counts: Counts
) -> None:
    """What is stored is the beginning of the undisturbed records, up to last_seq; all of them,
    where the experiment succeeded."""
    last = experiment.last_seq
    if experiment.status == Status.SUCCEEDED and last != records[-1]["seq"]:
        counts.lost_records += 1
    expected = Counter(_keys(r for r in records if r["seq"] <= last))
    found = Counter(_stored(session, experiment.id))
    counts.records += sum(found.values())
    for key in expected.keys() | found.keys():
        if key not in expected:
            counts.wrong_records += 1
        elif found[key] < expected[key]:
            counts.lost_records += expected[key] - found[key]
        elif found[key] > expected[key]:
            counts.doubled_records += found[key] - expected[key]


def _keys(records: Iterable[Record]) -> Iterable[PointKey]:
    for r in records:
        match r["record"]:
            case "point":
                key = (r["series"], canonical(r["labels"]), float(r["x"]))
                yield ("point", *key, r["value"], r["std_err"], float(r["n"]))
            case "metric":
                yield ("metric", r["name"], canonical(r["labels"]), r["value"], r["std_err"])
            case "log":
                yield ("log", r["seq"], r["message"])
            case "artifact":
                yield ("artifact", r["file"], r["sha256"])


def _stored(session: Session, experiment_id: str) -> Iterable[PointKey]:
    for s in read_series(session, experiment_id, max_points=1_000_000):
        for x, value, std_err, n in zip(s.x, s.value, s.std_err, s.n, strict=True):
            yield ("point", s.name, canonical(s.labels), x, value, std_err, n)
    for metric in store.metrics(session, experiment_id):
        labels = canonical(json.loads(metric.labels))
        yield ("metric", metric.name, labels, metric.value, metric.std_err)
    logs = select(Event).where(Event.experiment_id == experiment_id, Event.kind == "log")
    for event in session.scalars(logs):
        yield ("log", event.seq, event.data["message"])
    for artifact in store.artifacts(session, experiment_id):
        yield ("artifact", artifact.file, artifact.sha256)

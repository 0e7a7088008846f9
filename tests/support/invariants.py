"""The only checker of the queue's guarantees; every queue test calls it.

Every accepted experiment is there and has ended or is paused; its records are those of an
undisturbed run, each once; each claim began one attempt; nothing is left waiting or leased. The
ledger has a line for each attempt, ended where that has; each user's usage is the sum of its lines,
and the counters of monitoring are the sums over the experiments; no user had more runs at once than
its limit, and no worker more than one.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.db.engine import Database, hold_still
from service.experiments.models import Attempt, Event, Experiment, Usage
from service.fair_share import FairShare
from service.queue.ledger import decayed_usage, use_of
from service.queue.statistics import statistics
from service.records import results
from service.records.curves import read_series
from service.records.recording import canonical
from service.vocabulary import TERMINAL, Status

Record = Mapping[str, Any]
PointKey = tuple[Any, ...]


@dataclass
class Counts:
    """Numbers of checks and violations; all but the first two must be zero."""

    experiments: int = 0
    records: int = 0
    lost_experiments: int = 0
    stuck_experiments: int = 0
    lost_records: int = 0
    doubled_records: int = 0
    wrong_records: int = 0
    doubled_attempts: int = 0
    wrong_ledger_lines: int = 0
    wrong_usages: int = 0
    wrong_counters: int = 0
    passed_limits: int = 0
    shared_workers: int = 0

    @property
    def clean(self) -> bool:
        return not any(v for k, v in asdict(self).items() if k not in ("experiments", "records"))

    def __str__(self) -> str:
        return ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in asdict(self).items())


def check(
    database: Database,
    undisturbed: Mapping[str, Sequence[Record]],
    *,
    settled: bool = True,
    fair_share: FairShare | None = None,
) -> Counts:
    """Check the experiments named in `undisturbed`, each against the records of a run of its spec
    that nothing disturbed. Unless `settled`, experiments may still be under way. With the
    `fair_share` of the whole lab, all users and workers too."""
    counts = Counts()
    with database.snapshot() as session:
        hold_still(session)
        for experiment_id, records in undisturbed.items():
            counts.experiments += 1
            experiment = session.get(Experiment, experiment_id)
            if experiment is None:
                counts.lost_experiments += 1
                continue
            _check_state(session, experiment, counts, settled)
            _check_ledger(session, experiment, counts)
            _check_records(session, experiment, records, counts)
        if fair_share is not None:
            _check_usage(session, fair_share, counts)
            _check_counters(session, counts)
            _check_limits(session, fair_share, counts)
    return counts


def _check_ledger(session: Session, experiment: Experiment, counts: Counts) -> None:
    """A line for each attempt, one after the other; all but that of a run have ended."""
    query = select(Attempt).where(Attempt.experiment_id == experiment.id)
    lines = session.scalars(query.order_by(Attempt.attempt)).all()
    running = experiment.attempt if experiment.status == Status.RUNNING else None
    right = [line.attempt for line in lines] == list(range(1, experiment.attempt + 1))
    previous_end = 0.0
    for line in lines:
        end = math.inf if line.ended_at is None else line.ended_at
        right &= (line.ended_at is None) == (line.attempt == running)
        right &= (line.ended_at is None) == (line.outcome is None)
        right &= previous_end <= line.started_at <= end
        right &= line.owner_id == experiment.owner_id and (
            line.ended_at is not None or not line.folded
        )
        previous_end = end
    counts.wrong_ledger_lines += not right


def _check_usage(session: Session, fair_share: FairShare, counts: Counts) -> None:
    """Check that folded and unfolded usage together equal the sum of all lines."""
    lines = session.scalars(select(Attempt)).all()
    for usage in session.scalars(select(Usage)):
        member = (usage.owner_id, usage.project_id)
        folded = [line for line in lines if use_of(line).member == member and line.folded]
        expected = decayed_usage(fair_share, map(use_of, folded), usage.as_of)
        counts.wrong_usages += not math.isclose(
            usage.settled_s, expected, rel_tol=1e-9, abs_tol=1e-6
        )
    known = {(usage.owner_id, usage.project_id) for usage in session.scalars(select(Usage))}
    counts.wrong_usages += any(line.folded and use_of(line).member not in known for line in lines)


def _check_counters(session: Session, counts: Counts) -> None:
    """Check monitoring against the experiments, of which none was purged."""
    columns = (Experiment.status, Experiment.failure_kind, Experiment.lost, Experiment.created_at,
               Experiment.started_at)  # fmt: skip
    rows = session.execute(select(*columns)).all()
    waits_s = [row.started_at - row.created_at for row in rows if row.started_at is not None]
    failures = (row.failure_kind for row in rows if row.started_at and row.failure_kind)
    figures = statistics(session)
    counts.wrong_counters += figures.by_status != Counter(row.status for row in rows)
    counts.wrong_counters += figures.failures != Counter(failures)
    counts.wrong_counters += figures.lost != sum(row.lost for row in rows)
    counts.wrong_counters += figures.waits != len(waits_s)
    counts.wrong_counters += not math.isclose(figures.waits_s, math.fsum(waits_s), abs_tol=1e-3)


def _check_limits(session: Session, fair_share: FairShare, counts: Counts) -> None:
    """Compute from the events how many runs of each user and worker there were at once."""
    limits = {
        one.id: fair_share.max_running if one.max_running is None else one.max_running
        for one in session.scalars(select(User))
    }
    events = session.execute(
        select(Experiment.owner_id, Event.experiment_id, Event.data)
        .join(Experiment, Experiment.id == Event.experiment_id)
        .where(Event.kind == "status")
        .order_by(Event.at, Event.id)
    )
    runs: dict[int, dict[str, str]] = defaultdict(dict)
    for owner_id, experiment_id, data in events:
        runs[owner_id].pop(experiment_id, None)
        if data["status"] == Status.RUNNING:
            busy = {worker for own in runs.values() for worker in own.values()}
            counts.shared_workers += data["worker"] in busy
            runs[owner_id][experiment_id] = data["worker"]
        limit = limits[owner_id]
        counts.passed_limits += limit is not None and len(runs[owner_id]) > limit


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
    """Check that the stored records are the undisturbed records up to last_seq, and all of them if
    the experiment succeeded."""
    last = experiment.last_seq
    whole = records[-1]["seq"] if records else 0
    if experiment.status == Status.SUCCEEDED and last != whole:
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
    for metric in results.metrics(session, experiment_id):
        labels = canonical(json.loads(metric.labels))
        yield ("metric", metric.name, labels, metric.value, metric.std_err)
    logs = select(Event).where(Event.experiment_id == experiment_id, Event.kind == "log")
    for event in session.scalars(logs):
        yield ("log", event.seq, event.data["message"])
    for artifact in results.artifacts(session, experiment_id):
        yield ("artifact", artifact.file, artifact.sha256)

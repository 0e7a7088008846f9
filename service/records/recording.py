"""Store the records of a run in batches, behind the fence."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.db.engine import insert_new, now
from service.experiments.models import Artifact, Attempt, Block, Checkpoint, Event, Metric, Series
from service.queue.lease import Claim, Requested, checkpoints, forget_records, heartbeat
from service.records.results import MAX_ATTEMPTS

BATCH_RECORDS = 20_000
"""Maximum number of records in a transaction, so that it is short compared to the lease."""

SeriesKey = tuple[str, str]
"""Name and canonical labels of a series."""


def canonical(labels: dict[str, Any]) -> str:
    """Return labels as canonical text: equal labels have equal text."""
    return json.dumps(labels, sort_keys=True, separators=(",", ":"))


@dataclass
class Batch:
    """Records as the runner wrote them, grouped by kind."""

    points: dict[SeriesKey, list[dict[str, Any]]] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    restarts: bool = False
    """True if all records are sent again from the first. The stored records are then deleted."""
    checkpoint: dict[str, Any] | None = None
    ends: bool = False
    """True after a snapshot or a checkpoint, so that each block lies before or after it."""
    progress: dict[str, Any] | None = None
    eta_s: float | None = None
    """Estimated seconds to the end at that progress."""
    environment: dict[str, Any] | None = None
    """The latest environment of the attempt."""
    last_seq: int = 0
    size: int = 0
    """Number of records that change something in the database."""

    @property
    def is_complete(self) -> bool:
        """True if the next record belongs to the next batch."""
        return self.ends or self.size >= BATCH_RECORDS

    @property
    def is_progress_alone(self) -> bool:
        """True if nothing but progress is stored."""
        others = (self.points, self.metrics, self.logs, self.artifacts, self.restarts)
        return not any((*others, self.checkpoint, self.environment))

    def add(self, record: dict[str, Any]) -> bool:
        """Add a record. Return False if it is of a kind that is not stored."""
        match record["record"]:
            case "point":
                key = (record["series"], canonical(record["labels"]))
                self.points.setdefault(key, []).append(record)
            case "metric":
                self.metrics.append(record)
            case "log":
                self.logs.append(record)
            case "artifact":
                self.artifacts.append(record)
            case "progress":
                self.progress = record
            case "snapshot":
                self.ends = self.size > 0
                return False
            case "checkpoint":
                self.checkpoint, self.ends = record, True
            case "environment":
                self.environment = {k: v for k, v in record.items() if k not in ("seq", "record")}
            case "restart":
                self.restarts = True
            case _:
                return False
        self.last_seq = record["seq"] or self.last_seq  # some have no `seq`
        self.size += 1
        return True


def record(session: Session, claim: Claim, batch: Batch, lease_s: float) -> Requested:
    """Store a batch, and return what is requested of the run. Storing it again changes nothing.
    Raises LeaseLost."""
    moved = batch.last_seq or batch.restarts
    columns: dict[str, object] = {"last_seq": batch.last_seq} if moved else {}
    if batch.progress is not None:
        columns |= {f"progress_{key}": batch.progress[key] for key in ("done", "total", "unit")}
        columns |= {
            "progress_stage": batch.progress.get("stage"),
            "progress_at": now(),
            "progress_eta_s": batch.eta_s,
        }
    requested = heartbeat(session, claim, lease_s, **columns)
    if batch.restarts:
        forget_records(session, claim.experiment_id)
    if batch.environment is not None:
        _keep_environment(session, claim, batch.environment)
    experiment_id = claim.experiment_id
    metrics = [_metric_row(experiment_id, one) for one in batch.metrics]
    artifacts = [_artifact_row(claim, one) for one in batch.artifacts]
    _insert_points(session, experiment_id, batch)
    insert_new(session, Metric, metrics)
    insert_new(session, Artifact, artifacts)
    if batch.checkpoint is not None:
        insert_new(session, Checkpoint, [_checkpoint_row(claim, batch.checkpoint)])
        _forget_older_checkpoints(session, experiment_id)
    logs = _log_rows(session, experiment_id, batch.logs)
    insert_new(session, Event, logs)
    return requested


def _keep_environment(session: Session, claim: Claim, environment: dict[str, Any]) -> None:
    """Store the environment of an attempt, and delete those of attempts that are not listed any
    more."""
    own = update(Attempt).where(Attempt.experiment_id == claim.experiment_id)
    session.execute(own.where(Attempt.attempt == claim.attempt).values(environment=environment))
    old = Attempt.attempt <= claim.attempt - MAX_ATTEMPTS
    session.execute(own.where(old, Attempt.environment.is_not(None)).values(environment=None))


KEPT_CHECKPOINTS = 2
"""Number of checkpoints kept. If the latest is broken, the previous one is used."""


def _forget_older_checkpoints(session: Session, experiment_id: str) -> None:
    for old in checkpoints(session, experiment_id)[KEPT_CHECKPOINTS:]:
        session.delete(old)


def _insert_points(session: Session, experiment_id: str, batch: Batch) -> None:
    """Insert a block for each series. A batch that is stored again has the same blocks, which are
    there."""
    if not batch.points:
        return
    ids = _series_ids(session, experiment_id)
    if missing := [
        key for key in batch.points if key not in ids
    ]:  # a failed insert uses up an id too
        rows = [
            {"experiment_id": experiment_id, "name": name, "labels": labels}
            for name, labels in missing
        ]
        insert_new(session, Series, rows)
        ids = _series_ids(session, experiment_id)
    rows = [
        _block_row(ids[key], some)
        for key, points in batch.points.items()
        for some in _with_few_reasons(points)
    ]
    insert_new(session, Block, rows)


COLUMNS = ("x", "value", "std_err", "n")
MAX_REASONS = 255
"""Maximum number of reasons in a block, which stores one byte per point."""


def _with_few_reasons(points: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    """Split points so that each part has at most MAX_REASONS reasons."""
    begin, reasons = 0, set[str]()
    for i, point in enumerate(points):
        if "reason" not in point:
            continue
        reason = point["reason"]
        if reason not in reasons and len(reasons) == MAX_REASONS:
            yield points[begin:i]
            begin, reasons = i, set[str]()
        reasons.add(reason)
    if points[begin:]:
        yield points[begin:]


def _series_ids(session: Session, experiment_id: str) -> dict[SeriesKey, int]:
    series = session.execute(
        select(Series.name, Series.labels, Series.id).where(Series.experiment_id == experiment_id)
    )
    return {(name, labels): series_id for name, labels, series_id in series}


def _block_row(series_id: int, points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    reasons = sorted({point["reason"] for point in points if "reason" in point})
    code = {reason: i + 1 for i, reason in enumerate(reasons)}
    return {
        "series_id": series_id,
        "first_seq": points[0]["seq"],
        "last_seq": points[-1]["seq"],
        "count": len(points),
        "seq": np.array([point["seq"] for point in points], dtype="<i4").tobytes(),
        **{  # None becomes NaN
            name: np.array([point[name] for point in points], dtype="<f8").tobytes()
            for name in COLUMNS
        },
        "reason": bytes(code.get(point.get("reason"), 0) for point in points),
        "reasons": reasons,
    }


MAX_LOGS = 10_000
"""Maximum number of log lines kept for a run, so that a line for every step does not fill the
disk."""
LAST_LOG = f"this run has logged {MAX_LOGS} lines: further lines are not kept"


def _log_rows(
    session: Session, experiment_id: str, logs: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows for the log lines that are still kept. A resumed run repeats their record
    numbers. The first line beyond the limit is replaced by a note."""
    if not logs:
        return []
    earlier = select(func.count()).where(
        Event.experiment_id == experiment_id, Event.seq < logs[0]["seq"], Event.kind == "log"
    )
    room = MAX_LOGS - (session.scalar(earlier) or 0)
    kept = [*logs[: max(0, room)]]
    if 0 <= room < len(logs):
        kept.append({**logs[room], "level": "warning", "message": LAST_LOG})
    return [_log_row(experiment_id, log) for log in kept]


def _log_row(experiment_id: str, log: dict[str, Any]) -> dict[str, Any]:
    data = {"level": log["level"], "message": log["message"]}
    return {"experiment_id": experiment_id, "kind": "log", "data": data, "seq": log["seq"]}


def _artifact_row(claim: Claim, artifact: dict[str, Any]) -> dict[str, Any]:
    kept = {name: artifact[name] for name in ("seq", "file", "media_type", "sha256")}
    size = artifact.get("bytes")  # the supervisor adds it
    return {
        "experiment_id": claim.experiment_id,
        "attempt": claim.attempt,
        "bytes": size,
        **kept,
    }


def _checkpoint_row(claim: Claim, checkpoint: dict[str, Any]) -> dict[str, Any]:
    return {
        "experiment_id": claim.experiment_id,
        "after_seq": checkpoint["after"],
        "attempt": claim.attempt,
        "file": f"{claim.attempt}/{checkpoint['file']}",
        "sha256": checkpoint["sha256"],
        "bytes": checkpoint.get("bytes"),
    }


def _metric_row(experiment_id: str, metric: dict[str, Any]) -> dict[str, Any]:
    return {
        "experiment_id": experiment_id,
        "name": metric["name"],
        "labels": canonical(metric["labels"]),
        "seq": metric["seq"],
        "value": metric["value"],
        "std_err": metric["std_err"],
        "reason": metric.get("reason"),
    }

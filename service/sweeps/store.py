"""Find sweeps and their points, and change all points at once. No function commits."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Subquery,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute, Session
from uuid6 import uuid7

from mptcore.protocol.metrics import BY_MERIT, INTERIM
from mptcore.specs import Problem
from service.accounts import projects
from service.accounts.models import OWN
from service.accounts.users import Caller
from service.db.engine import now
from service.db.visibility import readable, reader
from service.experiments import deletion
from service.experiments.models import Experiment, Metric
from service.fair_share import FairShare
from service.queue import quota, sizes, states
from service.records import results
from service.records.means import SEED, mean_of, title
from service.refusals import ApiError, invalid
from service.sweeps.models import Sweep, SweepPoint
from service.sweeps.schemas import SweepSubmission
from service.vocabulary import TERMINAL, UNFINISHED, Action, DesiredState, Status, allowed

RETRYABLE = [one for one in TERMINAL if Action.RETRY in allowed(one, DesiredState.RUN)]
MAX_SPEC_BYTES = 128 * 2**20
"""Maximum bytes of the specs that a table reads: four seconds of a processor."""
MAX_EXPERIMENTS, MAX_BYTES = 15_000, 256 * 2**20
"""Maximum number of experiments of a sweep, including those that were retried, and of the bytes of
their specs. A change of its visibility locks and updates all of them; SQLite writes their specs
again."""


def new(owner_id: int, submission: SweepSubmission, project_id: int = OWN) -> Sweep:
    """Return a sweep that is not stored yet and has no points. Raises ApiError."""
    beside = {"spec", "name", "tags", "note", "priority", "concurrency"}
    return Sweep(
        id=uuid7().hex,
        owner_id=owner_id,
        project_id=project_id,
        visibility=projects.chosen_visibility(submission.visibility, project_id),
        fields=submission.fields(),
        comes_after=submission.after,
        **submission.model_dump(include=beside),
    )


def add(session: Session, sweep: Sweep, fair_share: FairShare | None = None) -> Sweep:
    """Store a new sweep. Raises ApiError if its owner has no room for its bytes."""
    fair_share = fair_share or FairShare()
    quota.lock(session, sweep.owner_id)
    sweep.kept_bytes = sizes.of_sweep(sweep)
    quota.check_bytes(session, sweep.owner_id, sweep.project_id, fair_share, sweep.kept_bytes)
    session.add(sweep)
    session.flush()
    return sweep


def lock(session: Session, sweep: Sweep) -> None:
    """Lock a sweep, so that one request at a time adds or replaces points, and read again what new
    points copy from it."""
    columns = ["fields", "tags", "priority", "visibility", "concurrency"]
    session.refresh(sweep, columns, with_for_update={"key_share": True})


def append(session: Session, sweep_id: str, experiment_ids: Sequence[str]) -> int:
    """Append points to a sweep, whose row is locked, and return the number of the first."""
    first = number_of_points(session, sweep_id)
    rows = [
        {"sweep_id": sweep_id, "point": point, "experiment_id": id}
        for point, id in enumerate(experiment_ids, first)
    ]
    # The table, not the class: for thousands of rows the ORM takes as long as the database does.
    session.execute(insert(SweepPoint.__table__), rows)  # type: ignore[arg-type]
    return first


def replace(session: Session, successors: Mapping[str, str]) -> None:
    """Replace old experiments by new ones (new by old) in the sweeps of the new ones."""
    point = update(SweepPoint).where(SweepPoint.experiment_id == bindparam("old"))
    of_new = select(Experiment.sweep_id).where(Experiment.id == bindparam("new"))
    taken = point.where(of_new.scalar_subquery() == SweepPoint.sweep_id)
    rows = [{"old": old, "new": new} for old, new in successors.items()]
    session.connection().execute(taken.values(experiment_id=bindparam("new")), rows)


def number_of_points(session: Session, sweep_id: str) -> int:
    """Return how many points a sweep has."""
    last = session.scalar(select(func.max(SweepPoint.point)).filter_by(sweep_id=sweep_id))
    return 0 if last is None else last + 1


def has_more_experiments(session: Session, sweep_id: str, than: int) -> bool:
    """Return whether a sweep has more experiments than a number, those that were retried
    included."""
    if not sweep_id.isalnum():
        return False
    next_one = select(literal(1)).where(Experiment.sweep_id == sweep_id).offset(than).limit(1)
    return session.scalar(next_one) is not None


def room(session: Session, sweep_id: str) -> tuple[int, int]:
    """Return how many more experiments a sweep may have, and how many more bytes of specs."""
    totals = func.count(), func.coalesce(func.sum(Experiment.spec_bytes), 0)
    count, size = session.execute(select(*totals).where(Experiment.sweep_id == sweep_id)).one()
    return MAX_EXPERIMENTS - count, MAX_BYTES - int(size)


def check_room(session: Session, sweep_id: str, more: int, more_bytes: int) -> None:
    """Raises ApiError if a sweep may not have `more` experiments in addition."""
    count, size = room(session, sweep_id)
    if more > count or more_bytes > size:
        detail = (
            f"a sweep has at most {MAX_EXPERIMENTS} experiments with {MAX_BYTES} bytes of specs, "
            "including those that were retried: submit the points as a new sweep"
        )
        raise ApiError(HTTPStatus.CONFLICT, "limit_reached", detail)


def base_bytes(session: Session, sweep_id: str) -> int:
    """Return the length of the base spec of a sweep."""
    length = func.length(cast(Sweep.spec, Text))
    return session.scalar(select(length).where(Sweep.id == sweep_id)) or 0


def spec_bytes(session: Session, sweep_id: str, user: Caller) -> int:
    """Return the bytes of the specs of the points that the caller may read."""
    total = _points(func.sum(Experiment.spec_bytes)).where(SweepPoint.sweep_id == sweep_id)
    return session.scalar(total, reader(user.id, user.is_admin)) or 0


def number_of_metrics(session: Session, sweep_id: str, most: int) -> int:
    """Return how many metrics the table of a sweep has, or `most` if these are more."""
    some = select(literal(1)).where(*_of_sweep(sweep_id)).limit(most).subquery()
    return session.scalar(select(func.count()).select_from(some)) or 0


def _of_sweep(sweep_id: str) -> tuple[ColumnElement[bool], ...]:
    """Select the metrics of each point of a sweep."""
    is_of_point = SweepPoint.experiment_id == Metric.experiment_id
    return is_of_point, SweepPoint.sweep_id == sweep_id


def counts(
    session: Session, sweep_ids: Sequence[str], user: Caller
) -> dict[str, dict[Status, int]]:
    """Return the number of points by status of each of these sweeps. Only points that the caller
    may read are counted."""
    query = _points(SweepPoint.sweep_id, Experiment.status, func.count())
    query = query.where(SweepPoint.sweep_id.in_(sweep_ids))
    rows = session.execute(
        query.group_by(SweepPoint.sweep_id, Experiment.status), reader(user.id, user.is_admin)
    )
    found: dict[str, dict[Status, int]] = defaultdict(dict)
    for sweep_id, status, count in rows:
        found[sweep_id][Status(status)] = count
    return found


MAX_COMPARED = 100
"""Maximum number of points of a sweep whose best is shown in a list."""


def choosing_metrics(
    session: Session, sweep_ids: Sequence[str], user: Caller
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the metrics that choose between models, as means over seeds by sweep, experiment and
    name. Only points that the caller may read count."""
    query = _points(
        SweepPoint.sweep_id,
        Experiment.id,
        *(Metric.name, Metric.labels, Metric.value, Metric.std_err),
    ).join(Metric, Metric.experiment_id == Experiment.id)
    query = query.where(SweepPoint.sweep_id.in_(sweep_ids), Metric.name.in_(BY_MERIT))
    query = query.order_by(SweepPoint.sweep_id, SweepPoint.point, Metric.seq)
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    seeds: dict[tuple[str, str, str], dict[str, tuple[float | None, float | None]]] = {}
    for sweep_id, id, name, labels, value, std_err in session.execute(
        query, reader(user.id, user.is_admin)
    ):
        if results.parsed_labels(labels).keys() <= {SEED}:
            seeds.setdefault((sweep_id, id, name), {})[labels] = value, std_err
    for (sweep_id, id, name), by_seed in seeds.items():
        values, errors = zip(*by_seed.values(), strict=True)
        mean, std_err = mean_of(name, values, errors)
        found[sweep_id][id][name] = {"value": mean, "std_err": std_err}
    return found


POINTS_AT_ONCE = 250
"""Maximum number of points whose specs are in memory at the same time. A spec may be large."""


def points(session: Session, sweep_id: str, user: Caller) -> Iterator[Row[Any]]:
    """Yield the points that the caller may read, in order."""
    wanted = ("id", "status", "failure_kind", "failure_message", "spec")
    query = _points(SweepPoint.point, *(getattr(Experiment, name) for name in wanted))
    query = query.where(SweepPoint.sweep_id == sweep_id, SweepPoint.point > bindparam("last"))
    query = query.order_by(SweepPoint.point).limit(POINTS_AT_ONCE)
    may_read, last = reader(user.id, user.is_admin), -1
    while found := session.execute(query, {**may_read, "last": last}).all():
        yield from found
        last = found[-1].point


def check_specs(session: Session, sweep_id: str, user: Caller) -> None:
    """Raise ApiError if the specs of the points that the caller may read are too large for a
    table."""
    if (size := spec_bytes(session, sweep_id, user)) > MAX_SPEC_BYTES:
        detail = (
            f"the specs of its points have {size} bytes, and a table reads at most "
            f"{MAX_SPEC_BYTES}: read its experiments with GET /v1/experiments instead"
        )
        raise invalid([Problem("/path/sweep_id", detail)])


def _points(*columns: Any) -> Select[Any]:
    return (
        select(*columns)
        .select_from(SweepPoint)
        .join(Experiment, Experiment.id == SweepPoint.experiment_id)
        .where(readable(Experiment))
    )


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column of a table: a metric with its labels other than the seed."""

    name: str
    title: str
    is_interim: bool


SweepMetric = tuple[Column, Mapping[str, Any], float | None, float | None]
"""A metric of a point: its column, all its labels, its value and its standard error. A sweep may
have MAX_METRICS, and dicts would take twice as long."""


def metrics(session: Session, sweep_id: str) -> dict[str, list[SweepMetric]]:
    """Return the metrics of a sweep by experiment. Those of an experiment that is several points
    are read once, and count for each point. Raises ApiError if there are too many."""
    try:
        results.check_metrics(session, *_of_sweep(sweep_id))
    except results.TooManyMetrics:
        detail = (
            f"a table has at most {results.MAX_METRICS} metrics, and this sweep has more: read "
            "those of its experiments with GET /v1/experiments/{id}/metrics instead"
        )
        raise invalid([Problem("/path/sweep_id", detail)]) from None
    wanted = (Metric.experiment_id, Metric.name, Metric.labels, Metric.value, Metric.std_err)
    mine = select(SweepPoint.experiment_id).where(SweepPoint.sweep_id == sweep_id)
    query = select(*wanted).where(Metric.experiment_id.in_(mine))
    query = query.order_by(Metric.experiment_id, Metric.seq)
    found: dict[str, list[SweepMetric]] = defaultdict(list)
    columns: dict[tuple[Any, ...], Column] = {}
    known: dict[tuple[str, str], tuple[Column, Mapping[str, Any]]] = {}
    for experiment_id, name, text, value, std_err in session.execute(query):
        column_and_labels = known.get((name, text))
        if column_and_labels is None:
            labels = results.parsed_labels(text)
            others = {key: labels[key] for key in labels if key != SEED}
            column = columns.setdefault(
                (name, *others.items()),
                Column(name, title(name, others), not INTERIM.isdisjoint(others)),
            )
            column_and_labels = known[name, text] = column, labels
        found[experiment_id].append((*column_and_labels, value, std_err))
    return found


def progress(session: Session, sweep_id: str) -> float:
    """Return the progress of the running experiments, in units of one run."""
    rows = session.execute(
        select(Experiment.progress_done, Experiment.progress_total).where(
            Experiment.sweep_id == sweep_id,
            Experiment.status == Status.RUNNING,
            Experiment.progress_total > 0,
        )
    )
    return math.fsum(min(1.0, (done or 0) / (total or 1)) for done, total in rows)


def retryable(session: Session, sweep: Sweep, most: int, most_bytes: int) -> Sequence[Experiment]:
    """Return the experiments of its points that failed or were cancelled: the first `most` ones
    whose specs together have at most `most_bytes` bytes, and at least one."""
    found = _retryable(sweep.id)
    columns = select(found.c.experiment_id, found.c.spec_bytes)
    first = columns.where(found.c.spec_bytes.is_not(None)).order_by(found.c.point)
    rows = session.execute(first.limit(max(1, most))).all()
    totals = accumulate(one.spec_bytes for one in rows)
    count = sum(total <= most_bytes for total in totals)
    chosen = [one.experiment_id for one in rows[: max(1, count)]]
    of_id = {
        one.id: one for one in session.scalars(select(Experiment).where(Experiment.id.in_(chosen)))
    }
    return [of_id[one] for one in chosen if one in of_id]  # others were purged meanwhile


def number_of_retryable(session: Session, sweep_id: str) -> int:
    """Return the number of its points that failed or were cancelled."""
    return session.scalar(select(func.count(_retryable(sweep_id).c.spec_bytes))) or 0


def retryable_bytes(session: Session, sweep_id: str) -> int:
    """Return the bytes of the specs of its points that failed or were cancelled."""
    return session.scalar(select(func.sum(_retryable(sweep_id).c.spec_bytes))) or 0


def is_retryable(session: Session, sweep_id: str) -> bool:
    """Return whether a point has failed or was cancelled."""
    found = _retryable(sweep_id)
    one = select(found.c.point).where(found.c.spec_bytes.is_not(None)).limit(1)
    return session.scalar(one) is not None


def _retryable(sweep_id: str) -> Subquery[Any]:
    """Select the points of a sweep, with the bytes of their specs if they failed or were cancelled.
    Each experiment is looked up by its id alone: as a join, before PostgreSQL has statistics of a
    new sweep, it compares all points with all experiments."""
    is_own = Experiment.sweep_id == sweep_id
    failed = is_own & Experiment.status.in_(RETRYABLE) & Experiment.deleted_at.is_(None)
    size = select(case((failed, Experiment.spec_bytes)))
    size = size.where(Experiment.id == SweepPoint.experiment_id)
    columns = SweepPoint.point, SweepPoint.experiment_id, size.scalar_subquery().label("spec_bytes")
    return select(*columns).where(SweepPoint.sweep_id == sweep_id).subquery()


def actions(session: Session, sweep: Sweep, counts: Mapping[Status, int]) -> set[Action]:
    """Return the actions that the states of a sweep's points allow."""
    can = {Action.CHANGE}
    if any(counts.get(status) for status in UNFINISHED):
        can.add(Action.CANCEL)
    if any(counts.get(status) for status in RETRYABLE):
        can.add(Action.RETRY)
    return can if obstacle(session, sweep) else can | {Action.DELETE}


def obstacle(session: Session, sweep: Sweep) -> str | None:
    """Return what prevents the deletion of a sweep: "running" or "pinned" experiments."""
    mine = select(Experiment.id).where(
        Experiment.sweep_id == sweep.id, Experiment.deleted_at.is_(None)
    )
    for what, kept in (
        ("running", Experiment.status == Status.RUNNING),
        ("pinned", Experiment.pinned),
    ):
        if session.scalar(mine.where(kept).limit(1)) is not None:
            return what
    return None


def remove(session: Session, sweep: Sweep) -> None:
    """Hide a sweep and the experiments created for it. Waiting ones are cancelled first."""
    states.cancel_all(session, Experiment.sweep_id == sweep.id)
    mine = select(Experiment.id).where(Experiment.sweep_id == sweep.id)
    deletion.remove_ended(session, mine)  # of many retries: too many ids for a statement
    sweep.deleted_at = session.scalar(select(now()))


def change(
    session: Session, sweep: Sweep, changes: Mapping[str, Any], fair_share: FairShare
) -> None:
    """Change columns of a sweep, and count the bytes of its texts. Raises ApiError."""
    # The sweep first, then its owner: a request that adds points takes the locks in this order.
    session.refresh(sweep, ["name", "tags", "note"], with_for_update={"key_share": True})
    before = sizes.of_sweep(sweep)
    for name, value in changes.items():
        setattr(sweep, name, value)
    sweep.kept_bytes = sizes.of_sweep(sweep)
    session.flush()
    if (more := sweep.kept_bytes - before) > 0:
        quota.lock(session, sweep.owner_id)
        quota.check_bytes(session, sweep.owner_id, sweep.project_id, fair_share, more)


def change_all(session: Session, sweep: Sweep, wanted: dict[str, Any]) -> None:
    """Apply changes of a sweep to its experiments. Raises ApiError."""
    if "priority" in wanted:  # first: heartbeats do not wait while this one waits for the owner
        quota.check_priority(session, sweep.owner_id, wanted["priority"])
    mine = Experiment.sweep_id == sweep.id
    if "visibility" in wanted:
        _set(session, Experiment.visibility, wanted["visibility"], mine)
    if "priority" in wanted:
        unfinished = mine & Experiment.status.in_(UNFINISHED)
        _set(session, Experiment.priority, wanted["priority"], unfinished)


def _set(
    session: Session, column: InstrumentedAttribute[Any], value: Any, which: ColumnElement[bool]
) -> None:
    """Set a column of experiments in which it differs. They are locked in the order of their ids,
    as by `states.cancel_all`."""
    locked = select(Experiment.id).where(which, column != value).order_by(Experiment.id)
    change = update(Experiment).where(Experiment.id.in_(locked.with_for_update()))
    session.execute(change.values({column: value}).execution_options(synchronize_session=False))


def purge(session: Session, after_s: float) -> None:
    """Delete sweeps that were deleted more than `after_s` seconds ago and have no experiments
    left."""
    left = select(Experiment.id).where(Experiment.sweep_id == Sweep.id).exists()
    gone = select(Sweep.id).where(Sweep.deleted_at <= now() - after_s, ~left)
    ids = session.scalars(gone.with_for_update(skip_locked=True)).all()
    session.execute(delete(SweepPoint).where(SweepPoint.sweep_id.in_(ids)))
    session.execute(delete(Sweep).where(Sweep.id.in_(ids)))

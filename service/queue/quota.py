"""Limits of a user and of a project: unfinished experiments, priority, and bytes in the store.

Stored bytes are measured: of sweeps, uploads and requests in their rows, of experiments by the
controller after each attempt (`sizes.measure`). What a run may still write is counted as expected.
"""

from collections import defaultdict
from dataclasses import dataclass
from http import HTTPStatus

from sqlalchemy import ColumnElement, Select, func, select, text
from sqlalchemy.orm import Session

from service.accounts import projects
from service.accounts.models import OWN, Project, User
from service.datasets.models import Dataset
from service.experiments.models import IN_PROJECT, Checkpoint, Experiment
from service.fair_share import FairShare
from service.queue.claims import MAX_PRIORITY
from service.queue.sizes import EXPERIMENT_BYTES
from service.refusals import ApiError
from service.submission.models import KeptRequest
from service.sweeps.models import Sweep
from service.vocabulary import TERMINAL, UNFINISHED


def _kept_bytes(whose: str = "owner_id") -> list[Select[int, int | None]]:
    """Select owners, or projects, and bytes, by kind of what they keep. Checkpoints are those of
    unfinished experiments; others are deleted soon."""
    rows = EXPERIMENT_BYTES + Experiment.spec_bytes + func.coalesce(Experiment.record_bytes, 0)
    of_experiment = getattr(Experiment, whose)
    checkpoints = select(of_experiment, func.sum(Checkpoint.bytes))
    kinds = [
        select(of_experiment, func.sum(rows)).group_by(of_experiment),
        checkpoints.join_from(Experiment, Checkpoint, Checkpoint.experiment_id == Experiment.id)
        .where(Experiment.status.in_(UNFINISHED))
        .group_by(of_experiment),
    ]
    for table in (Sweep, Dataset, KeptRequest):
        if (column := getattr(table, whose, None)) is not None:  # requests are in no project
            kinds.append(select(column, func.sum(table.kept_bytes)).group_by(column))
    return kinds


def kept(session: Session, owner_id: int) -> int:
    """Return how many bytes a user keeps."""
    return _sum_of(session, _kept_bytes(), owner_id)


def _kept_in_project(session: Session, project_id: int) -> int:
    experiments, checkpoints, *others = _kept_bytes("project_id")
    of_index = text(f"experiments.{IN_PROJECT}")
    kinds = [experiments.where(of_index), checkpoints.where(of_index), *others]
    return _sum_of(session, kinds, project_id)


def _sum_of(session: Session, kinds: list[Select[int, int | None]], id: int) -> int:
    of_id = (query.where(query.selected_columns[0] == id).subquery() for query in kinds)
    sums = [func.coalesce(select(kind.c[1]).scalar_subquery(), 0) for kind in of_id]
    return int(sum(session.execute(select(*sums)).one()))


def kept_by_user(session: Session) -> dict[int, int]:
    """Return how many bytes each user keeps; users without any may be missing."""
    totals: dict[int, int] = defaultdict(int)
    for query in _kept_bytes():
        for owner_id, size in session.execute(query):
            totals[owner_id] += int(size or 0)
    return totals


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a user or a project keeps, and the limit."""

    kept: int
    expected: int
    """Points that the user's unfinished experiments write at most, or that ended ones may have
    written if they are not measured yet."""
    most: int | None
    project: str | None = None

    def holds(self, needed: int) -> bool:
        """Return whether there is room for `needed` more bytes."""
        return self.most is None or self.kept + self.expected + needed <= self.most

    def check(self, needed: int) -> None:
        """Raise ApiError if `needed` more bytes are too many."""
        if self.holds(needed):
            return
        who, whose, kind, name = "you keep", "your", "user", "NAME"
        if self.project is not None:
            who, whose, kind, name = f"project {self.project} keeps", "its", "project", self.project
        unfinished = f", {whose} unfinished experiments may write {self.expected} more"
        detail = (
            f"{who} {self.kept} bytes{unfinished if self.expected else ''}, this needs {needed}, "
            f"and {whose} limit is {self.most} (max_bytes): delete data sets, experiments or "
            "sweeps (deleted experiments and sweeps count until the service purges them), or ask "
            f"an administrator for a higher limit: mpt admin {kind} set {name} --max-bytes BYTES"
        )
        raise ApiError(HTTPStatus.CONFLICT, "storage_quota", detail)


def limit(session: Session, owner_id: int, fair_share: FairShare) -> int | None:
    """Return how many bytes a user may keep; None without a limit."""
    own = session.scalar(select(User.max_bytes).where(User.id == owner_id))
    return fair_share.max_bytes if own is None else own


UNLIMITED = Room(0, 0, None)


def room_of(session: Session, owner_id: int, fair_share: FairShare) -> Room:
    """Return the stored bytes of a user and their limit. Without a limit the sums are not
    computed."""
    if (most := limit(session, owner_id, fair_share)) is None:
        return UNLIMITED
    expected = _expected(session, Experiment.owner_id == owner_id)
    return Room(kept(session, owner_id), expected, most)


def _room_in(session: Session, project: Project) -> Room:
    if project.max_bytes is None:
        return UNLIMITED
    expected = _expected(session, (Experiment.project_id == project.id) & text(IN_PROJECT))
    return Room(_kept_in_project(session, project.id), expected, project.max_bytes, project.name)


def _expected(session: Session, some: ColumnElement[bool]) -> int:
    sums = [
        select(func.coalesce(func.sum(Experiment.expected_bytes), 0))
        .where(some, condition)
        .scalar_subquery()
        for condition in (
            Experiment.status.in_(UNFINISHED),
            Experiment.record_bytes.is_(None) & Experiment.status.in_(TERMINAL),
        )
    ]
    return int(sum(session.execute(select(*sums)).one()))


def check_limits(
    session: Session, owner_id: int, priority: int, more: int, fair_share: FairShare
) -> None:
    """Raises ApiError if a user may not have `more` experiments. Submissions of one user pass here
    one at a time, so that two do not both take the last place."""
    check_priority(session, owner_id, priority)
    count, most = submitted_of(session, owner_id, fair_share)
    if count + more > most:
        asked = "" if more == 1 else f"; these are {more} more"
        detail = f"{count} of your experiments have not ended, and your limit is {most}{asked}"
        raise ApiError(HTTPStatus.CONFLICT, "limit_reached", detail)


def check_project(session: Session, owner_id: int, project_id: int, more: int, needed: int) -> None:
    """Raises ApiError if the owner may not have `more` experiments in a project, also ones that are
    retried, or may not store `needed` more bytes in it."""
    project = hold_project(session, owner_id, project_id)
    _room_in(session, project).check(needed)
    if project.max_submitted is None:
        return
    unfinished = Experiment.status.in_(UNFINISHED) & text(IN_PROJECT)
    in_project = select(func.count()).where(Experiment.project_id == project_id, unfinished)
    count = session.scalar(in_project) or 0
    if count + more > project.max_submitted:
        asked = "" if more == 1 else f"; these are {more} more"
        detail = (
            f"{count} experiments of project {project.name} have not ended, and its limit is "
            f"{project.max_submitted}{asked}"
        )
        raise ApiError(HTTPStatus.CONFLICT, "limit_reached", detail)


def hold_project(session: Session, owner_id: int, project_id: int, within: str = "") -> Project:
    """Lock a project's row until the transaction ends, so that two submissions do not both take the
    last place, and no admin closes it meanwhile. `within` is the place in the request. Raises
    ApiError if the owner may not use the project."""
    project = _locked(session, project_id)
    projects.chosen(session, owner_id, project.name, within)
    return project


def _locked(session: Session, project_id: int) -> Project:
    row = select(Project).where(Project.id == project_id).with_for_update()
    return session.scalars(row.execution_options(populate_existing=True)).one()


def check_bytes(
    session: Session, owner_id: int, project_id: int, fair_share: FairShare, needed: int
) -> None:
    """Check that a user may store this number of additional bytes, and the project, if there is
    one. Raises ApiError."""
    room_of(session, owner_id, fair_share).check(needed)
    if project_id != OWN:
        _room_in(session, _locked(session, project_id)).check(needed)


def check_priority(session: Session, owner_id: int, priority: int) -> None:
    """Raises ApiError if the owner may not use this priority. Locks the user's row."""
    may_jump = session.scalar(
        select(User.may_jump).where(User.id == owner_id).with_for_update(key_share=True)
    )
    if priority > MAX_PRIORITY and not may_jump:
        detail = f"a priority above {MAX_PRIORITY} jumps the queue: an administrator allows it"
        raise ApiError(HTTPStatus.FORBIDDEN, "may_not_jump", detail)


def submitted_of(session: Session, owner_id: int, fair_share: FairShare) -> tuple[int, int]:
    """Return how many experiments of a user have not ended, and the limit."""
    own = session.scalar(select(User.max_submitted).where(User.id == owner_id))
    mine = select(func.count()).where(
        Experiment.owner_id == owner_id, Experiment.status.in_(UNFINISHED)
    )
    return session.scalar(mine) or 0, fair_share.max_submitted if own is None else own


def lock(session: Session, owner_id: int) -> None:
    """Make other submissions and uploads of the user wait until the transaction ends. Heartbeats do
    not wait for this lock."""
    session.execute(select(User.id).where(User.id == owner_id).with_for_update(key_share=True))

"""Routes of users' positions in the queue."""

from collections.abc import Collection, Mapping

from fastapi import APIRouter
from sqlalchemy.orm import Session

from service.accounts import accounts, projects
from service.accounts.users import Caller
from service.db.engine import moment
from service.experiments import store
from service.experiments.titles import titles_of
from service.queue import quota, shares, turns
from service.queue.forecast import Running
from service.queue.ledger import Member
from service.queue.position import queue_positions
from service.queue.schemas import (
    ProjectUsage,
    QueuedOut,
    QueueOut,
    SlotOut,
    UsageList,
    UsageOut,
)
from service.queue.shares import Standing
from service.queue.snapshot import QueueSnapshot
from service.queue.turns import Slot
from service.web.dependencies import Admin, DatabaseDep, QueueSnapshotsDep, Reader
from service.web.route import StrictRoute

router = APIRouter(tags=["queue"], route_class=StrictRoute)

SHOWN = 100


@router.get("/v1/queue")
def get_queue(database: DatabaseDep, queue_snapshots: QueueSnapshotsDep, user: Reader) -> QueueOut:
    """Return the caller's share of the server, limits, and queued experiments in order."""
    fair_share = queue_snapshots.fair_share
    with database.snapshot() as session:
        standings = shares.standings(session, fair_share)
        submitters = shares.submitters(session)
        waiting = store.next_in_turn(session, user.id, SHOWN)
        found = queue_positions(session, waiting, queue_snapshots)
        titles = titles_of(session, waiting, user)
        slots = _slots(session, queue_snapshots.of(session, {Member(user.id)}), user)
        submitted, most = quota.submitted_of(session, user.id, fair_share)
        kept_bytes = quota.kept(session, user.id)
        names = projects.of_member(session, user.id)
        max_bytes = quota.limit(session, user.id, fair_share)
    mine = next(one for one in standings if one.member == Member(user.id))
    return QueueOut(
        running=mine.running,
        max_running=mine.max_running,
        submitted=submitted,
        max_submitted=most,
        gpu_hours=None if mine.max_gpu_hours is None else mine.gpu_hours,
        max_gpu_hours_a_day=mine.max_gpu_hours,
        kept_bytes=kept_bytes,
        max_bytes=max_bytes,
        share=shares.share_of(user.id, standings, submitters),
        projects=_projects(standings, submitters, names),
        items=[
            QueuedOut.of(one, queue=found[one.id], title=titles[one.id])
            for one in waiting
            if one.id in found
        ],
        slots=slots,
    )


def _projects(
    standings: list[Standing], submitters: Collection[int], names: Collection[str] | None = None
) -> list[ProjectUsage]:
    """Return the usage of the named projects, or of all that have members."""
    accounts = {
        one.project_id: one.account
        for one in standings
        if one.project_id and (names is None or one.account.project in names)
    }
    found = [
        ProjectUsage(
            name=account.project or "",
            running=account.running,
            max_running=account.max_running,
            gpu_hours=None if account.max_gpu_hours is None else account.gpu_hours,
            max_gpu_hours_a_day=account.max_gpu_hours,
            share=shares.share_of_project(id, standings, submitters),
        )
        for id, account in accounts.items()
    ]
    return sorted(found, key=lambda project: project.name)


def _slots(session: Session, snapshot: QueueSnapshot, user: Caller) -> list[SlotOut]:
    """Return whose runs the workers have, with the ids and titles that the caller may read."""
    slots = list(turns.slots(snapshot))
    runs = [slot.run for slot in slots if slot.run is not None]
    ids = [id for run in runs for id in (run.experiment_id, run.gives_way_to) if id is not None]
    readable = store.readable_ones(session, user, ids)
    titles = titles_of(session, readable, user)
    return [_slot(slot, snapshot, titles) for slot in slots]


def _slot(slot: Slot, snapshot: QueueSnapshot, titles: Mapping[str, str]) -> SlotOut:
    run, slice_s = slot.run, snapshot.fair_share.slice_s
    id = None if run is None or run.experiment_id not in titles else run.experiment_id
    return SlotOut(
        worker=slot.place.worker_id,
        name=turns.slot_name(slot.place),
        queue=slot.place.queue,
        owner=None if run is None else snapshot.standings[run.member].name,
        project=None
        if run is None or id is None
        else snapshot.standings[run.member].account.project,
        experiment_id=id,
        title=None if id is None else titles[id],
        since=None if run is None else moment(run.started_at),
        keeps_until=None if run is None or not slice_s else moment(run.started_at + slice_s),
        expected_end=None if run is None else moment(run.end),
        displaced_by=[*dict.fromkeys(one.name for one in slot.displacers)][: turns.SHOWN_NAMES],
        gives_way_to=None if run is None else _other(run, snapshot, titles),
    )


def _other(run: Running, snapshot: QueueSnapshot, titles: Mapping[str, str]) -> str | None:
    """Return the experiment that a run is asked to give way to, in words for the reader."""
    if run.gives_way_to is None or run.other_owner_id is None:
        return None
    name = snapshot.standings[Member(run.other_owner_id)].name
    return f"{name}'s {titles.get(run.gives_way_to, 'run')}"


@router.get("/v1/usage")
def get_usage(database: DatabaseDep, queue_snapshots: QueueSnapshotsDep, user: Admin) -> UsageList:
    """Return how users share the server, those with the most recent usage first."""
    with database.snapshot() as session:
        names = {one.id: one.name for one in accounts.listed(session)}
        standings = shares.standings(session, queue_snapshots.fair_share)
        submitters = shares.submitters(session)
        kept = quota.kept_by_user(session)
    own = sorted((one for one in standings if not one.project_id), key=lambda one: -one.charged_s)
    return UsageList(
        items=[
            UsageOut(
                name=names[one.owner_id],
                running=one.running,
                kept_bytes=kept[one.owner_id],
                share=shares.share_of(one.owner_id, standings, submitters),
            )
            for one in own
        ],
        projects=_projects(standings, submitters),
    )

"""Routes of users' positions in the queue."""

from fastapi import APIRouter

from service.accounts import accounts
from service.experiments import store
from service.experiments.titles import titles_of
from service.queue import quota, shares
from service.queue.position import queue_positions
from service.queue.schemas import QueuedOut, QueueOut, UsageList, UsageOut
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
        submitted, most = quota.submitted_of(session, user.id, fair_share)
        kept_bytes = quota.kept(session, user.id)
        max_bytes = quota.limit(session, user.id, fair_share)
    mine = next(one for one in standings if one.owner_id == user.id)
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
        items=[
            QueuedOut.of(one, queue=found[one.id], title=titles[one.id])
            for one in waiting
            if one.id in found
        ],
    )


@router.get("/v1/usage")
def get_usage(database: DatabaseDep, queue_snapshots: QueueSnapshotsDep, user: Admin) -> UsageList:
    """Return how users share the server, those with the most recent usage first."""
    with database.snapshot() as session:
        names = {one.id: one.name for one in accounts.listed(session)}
        standings = shares.standings(session, queue_snapshots.fair_share)
        submitters = shares.submitters(session)
        kept = quota.kept_by_user(session)
    standings.sort(key=lambda one: -one.charged_s)
    return UsageList(
        items=[
            UsageOut(
                name=names[one.owner_id],
                running=one.running,
                kept_bytes=kept[one.owner_id],
                share=shares.share_of(one.owner_id, standings, submitters),
            )
            for one in standings
        ]
    )

"""How a user stands in the queue."""

from fastapi import APIRouter

from service.dependencies import DatabaseDep, Reader
from service.experiments import shares, store
from service.experiments.models import Experiment
from service.experiments.place import places
from service.experiments.scene import ScenesDep
from service.experiments.schemas import QueuedOut, QueueOut, QueuePlace, moment

router = APIRouter(tags=["queue"])

SHOWN = 100


@router.get("/v1/queue")
def get_queue(database: DatabaseDep, scenes: ScenesDep, user: Reader) -> QueueOut:
    """The caller's share of the server, its limits, and what it has waiting, next first."""
    sharing = scenes.sharing
    with database.snapshot() as session:
        standings = shares.standings(session, sharing)
        waiting = store.next_in_turn(session, user.id, SHOWN)
        found = places(session, waiting, scenes)
        submitted, most = store.submitted_of(session, user.id, sharing)
    mine = next(one for one in standings if one.owner_id == user.id)
    return QueueOut(
        running=mine.under_way,
        max_running=mine.max_running,
        submitted=submitted,
        max_submitted=most,
        gpu_hours=None if mine.max_gpu_hours is None else mine.gpu_hours,
        max_gpu_hours_a_day=mine.max_gpu_hours,
        share=shares.share_of(user.id, standings),
        items=[_queued_out(one, found[one.id]) for one in waiting if one.id in found],
    )


def _queued_out(one: Experiment, place: QueuePlace) -> QueuedOut:
    created_at = moment(one.created_at)
    assert created_at is not None
    return QueuedOut(
        id=one.id,
        name=one.name,
        priority=one.priority,
        device=one.device,
        created_at=created_at,
        queue=place,
    )

"""The route that cancels all experiments that a list would hold."""

from dataclasses import fields
from http import HTTPStatus

from fastapi import APIRouter
from sqlalchemy import insert, select

from mptcore.specs import Problem
from service.accounts import audit
from service.accounts.permission import check_whose
from service.experiments.listing import Wanted, clauses
from service.queue import states
from service.refusals import invalid
from service.schemas import ResponseModel
from service.tables.audit import AuditEntry
from service.tables.experiments import UNFINISHED, DesiredState, Experiment
from service.web.bodies import StrictRoute
from service.web.dependencies import Canceller, WriterDep
from service.web.listing_parameters import WantedDep

router = APIRouter(tags=["experiments"], route_class=StrictRoute)

MAX_CANCELLED = 500
"""Maximum number of experiments that a request cancels: its transaction blocks other writers on
SQLite."""
NOT_FILTERS = ("whose", "order_by")


class CancelledOut(ResponseModel):
    """Numbers of experiments that a request cancelled."""

    cancelled: int
    """Number of queued or paused experiments that have ended."""
    ending: int
    """Number of running experiments. They end within a heartbeat and their grace period."""
    more: bool
    """True if more experiments match: send the request again."""


@router.post("/v1/experiments:cancel", status_code=HTTPStatus.ACCEPTED)
def cancel_experiments(wanted: WantedDep, database: WriterDep, user: Canceller) -> CancelledOut:
    """Cancel up to 500 experiments that have not ended and match all filters, the oldest first: the
    caller's, or with `whose=all` an admin cancels anyone's (`owner=ann`). The filters are those of
    the list, at least one is needed, and `order_by` changes nothing."""
    check_whose(wanted.whose, user)
    given = (getattr(wanted, one.name) for one in fields(Wanted) if one.name not in NOT_FILTERS)
    if not any(one.strip() if isinstance(one, str) else one for one in given):
        raise invalid([Problem("/query", "give at least one filter, such as status or owner")])
    with database.transaction() as session:
        matching = clauses(session, user.id, wanted)
        if not user.is_admin:
            matching.append(Experiment.owner_id == user.id)
        query = select(Experiment.id).where(
            *matching,
            Experiment.status.in_(UNFINISHED),
            Experiment.desired_state != DesiredState.CANCEL,
        )
        found = session.scalars(query.order_by(Experiment.id).limit(MAX_CANCELLED + 1)).all()
        done = states.cancel_all(session, Experiment.id.in_(found[:MAX_CANCELLED]))
        lines = [audit.line(user, "experiment.cancelled", one) for one in done.ids]
        if lines:
            session.execute(insert(AuditEntry), lines)
    cancelled = len(done.at_once)
    return CancelledOut(
        cancelled=cancelled,
        ending=len(done.ids) - cancelled,
        more=len(found) > MAX_CANCELLED,
    )

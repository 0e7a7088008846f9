"""Routes of curves: of one experiment, and of many at once."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts.permissions import find
from service.accounts.users import Caller
from service.curves.formats import MEDIA_TYPES, Answer, Format, FormatDep, written
from service.db.engine import Database
from service.experiments.models import Experiment
from service.experiments.store import find_all
from service.queue.states import is_terminal
from service.records.curves import (
    TooFewPoints,
    TooManySeries,
    check_series,
    labels_of,
    read_curves,
)
from service.records.schemas import CurvesOut, CurvesWanted, ManyCurvesOut
from service.records.selection import Wanted, check_selection
from service.refusals import invalid
from service.web.dependencies import HEAVY, DatabaseDep, Reader, reading
from service.web.etags import NOT_MODIFIED, IfNoneMatch, etag, is_known, not_modified, tagged
from service.web.parameters import ExperimentId, FreeParameters
from service.web.route import JsonBody, StrictRoute

router = APIRouter(prefix="/v1/experiments", tags=["curves"], route_class=StrictRoute)
custom = APIRouter(tags=["curves"], route_class=StrictRoute)

MaxPoints = Annotated[
    int, Query(ge=2, le=1_000_000, description="Maximum number of points of all series.")
]
After = Annotated[
    int, Query(ge=0, le=2**31 - 1, description="`last_seq` of an answer, to get later points.")
]
FORMATS: dict[str, dict[str, object]] = {
    MEDIA_TYPES[format]: {} for format in Format if format != Format.JSON
}
"""Descriptions of the formats other than JSON in the OpenAPI document."""


@dataclass(frozen=True)
class Asked:
    """Parameters of a request for one experiment's curves, besides its labels."""

    format: FormatDep
    if_none_match: IfNoneMatch = None
    max_points: MaxPoints = 100_000
    after: After = 0


AskedDep = Annotated[Asked, Depends()]


@router.get(
    "/{experiment_id}/curves",
    response_model=CurvesOut,
    responses={200: {"content": FORMATS}, **NOT_MODIFIED},
)
def get_curves(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    user: Reader,
    labels: FreeParameters,
    asked: AskedDep,
) -> Response:
    """Return all series with at most `max_points` points in total. Every other query parameter is a
    label with its value, for example ?seed=44, or with several values, ?seed=4&seed=44."""
    return _answer(database, experiment_id, None, user, labels, asked)


@router.get(
    "/{experiment_id}/curves/{series}",
    response_model=CurvesOut,
    responses={200: {"content": FORMATS}, **NOT_MODIFIED},
)
def get_curve(
    experiment_id: ExperimentId,
    series: Annotated[
        str, Path(max_length=64, pattern="^[a-z_]+$", description="Name of the series.")
    ],
    database: DatabaseDep,
    user: Reader,
    labels: FreeParameters,
    asked: AskedDep,
) -> Response:
    """Return the series with one name; other query parameters are labels, as for all curves. Until
    the experiment has ended, a series that it may still record is empty instead of unknown."""
    return _answer(database, experiment_id, series, user, labels, asked)


def _answer(
    database: Database,
    experiment_id: str,
    series: str | None,
    user: Caller,
    labels: Wanted,
    asked: Asked,
) -> Response:
    with reading(database) as session:
        experiment = find(session, user, Experiment, experiment_id)
        # The points stay the same up to a record number until another attempt starts.
        at = (experiment.id, experiment.attempt, experiment.last_seq, experiment.status)
        wanted = (sorted(labels.items()), asked.format, asked.max_points, asked.after, series)
        tag = etag(*at, *wanted)
        if is_known(tag, asked.if_none_match):
            return not_modified(tag)
        answer = _curves(session, experiment, series, labels, asked)
    return tagged(written(answer, asked.format), tag)


def _curves(
    session: Session,
    experiment: Experiment,
    series: str | None,
    labels: Wanted,
    asked: Asked,
) -> Answer:
    names = None if series is None else [series]
    known = labels_of(session, [experiment.id])[experiment.id]
    check_selection(known, is_terminal(experiment.status), names, labels)
    try:
        found = read_curves(
            session,
            [experiment.id],
            names=names,
            labels=labels,
            after=asked.after,
            max_points=asked.max_points,
        )
    except TooFewPoints as error:
        raise invalid([Problem("/query/max_points", str(error))]) from None
    # A run that was put back is before `after`.
    last_seqs = {experiment.id: max(experiment.last_seq, asked.after)}
    return Answer([experiment], found, last_seqs, batch=False)


@custom.post(
    "/v1/curves:batchGet",
    response_model=ManyCurvesOut,
    responses={200: {"content": FORMATS}},
    dependencies=[HEAVY],
)
def batch_get_curves(
    wanted: JsonBody[CurvesWanted],
    database: DatabaseDep,
    user: Reader,
    format: FormatDep,
) -> Response:
    """Return the curves of up to 1,000 experiments: all or none. If some do not exist, the 404
    names them."""
    with reading(database) as session:
        answer = _answer_of_many(session, wanted, user)
    return written(answer, format)


def _answer_of_many(session: Session, wanted: CurvesWanted, user: Caller) -> Answer:
    labels = {key: _texts(value) for key, value in wanted.labels.items()}
    experiments = find_all(session, user, wanted.ids)
    try:
        check_series(session, wanted.ids)
    except TooManySeries as error:
        raise invalid([Problem("/ids", f"name fewer experiments: {error}")]) from None
    known = [one for of in labels_of(session, wanted.ids).values() for one in of]
    ended = all(is_terminal(one.status) for one in experiments)
    check_selection(known, ended, wanted.series, labels, where="/labels")
    try:
        found = read_curves(
            session,
            wanted.ids,
            names=wanted.series,
            labels=labels,
            max_points=wanted.max_points,
        )
    except TooFewPoints as error:
        raise invalid([Problem("/max_points", str(error))]) from None
    last_seqs = {one.id: one.last_seq for one in experiments}
    return Answer(experiments, found, last_seqs, batch=True)


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]

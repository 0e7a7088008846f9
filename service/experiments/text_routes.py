"""Routes of scores of texts."""

import json
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import StringConstraints

from service.accounts.permissions import find
from service.experiments.models import Experiment
from service.queue.states import is_terminal
from service.records import results
from service.records.artifacts import whole_file
from service.records.schemas import TextsOut
from service.records.spreadsheets import csv_text
from service.records.texts import FILE, TextPage, TextsWanted, page
from service.refusals import ApiError
from service.web.dependencies import DatabaseDep, Reader, SettingsDep
from service.web.media_types import accepted
from service.web.parameters import ExperimentId
from service.web.route import StrictRoute

router = APIRouter(prefix="/v1/experiments", tags=["texts"], route_class=StrictRoute)


class TextForm(StrEnum):
    """Format of a page of texts."""

    JSON = "json"
    CSV = "csv"


TEXT_TYPES = {TextForm.JSON: "application/json", TextForm.CSV: "text/csv"}


async def _text_form(
    request: Request,
    format: Annotated[
        TextForm | None, Query(description="Format of the answer. It overrides the Accept header.")
    ] = None,
) -> TextForm:
    return format or accepted(request, TEXT_TYPES)


Column = Annotated[str, StringConstraints(max_length=64)]


def _wanted(
    order: Annotated[
        str,
        Query(
            max_length=64,
            description="Column of numbers to sort by, such as pll, or pll_per_token; with a minus "
            "before it, highest first.",
        ),
    ] = "row",
    offset: Annotated[
        int, Query(ge=0, le=2**31 - 1, description="`next_offset` of a page, to get later rows.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Maximum number of rows.")] = 100,
    columns: Annotated[
        list[Column] | None,
        Query(max_length=50, description="Columns. Without them, all but `by_token`."),
    ] = None,
    group: Annotated[
        str | None, Query(max_length=1000, description="Only the rows of this group.")
    ] = None,
) -> TextsWanted:
    return TextsWanted(order, offset, limit, tuple(columns or ()), group)


@router.get(
    "/{experiment_id}/texts",
    response_model=TextsOut,
    responses={200: {"content": {TEXT_TYPES[TextForm.CSV]: {"schema": {"type": "string"}}}}},
)
def get_texts(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    settings: SettingsDep,
    user: Reader,
    wanted: Annotated[TextsWanted, Depends(_wanted)],
    form: Annotated[TextForm, Depends(_text_form)],
) -> Response:
    """Return a page of the scores of each text, by `evaluate.texts`. They are complete when the
    run has succeeded. A page holds about 8 MiB at most, so it may have fewer rows than `limit`."""
    with database.snapshot() as session:
        experiment = find(session, user, Experiment, experiment_id)
        known = {one.file: one for one in results.artifacts(session, experiment_id)}
        ended = is_terminal(experiment.status)
    if FILE not in known:
        cure = ": mpt score scores each text" if ended else " yet"
        detail = f"the experiment has no scores of texts{cure}"
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", detail)
    found = page(whole_file(settings, known[FILE]), known[FILE].sha256, wanted)
    return _csv(found) if form == TextForm.CSV else _json(found)


def _json(found: TextPage) -> Response:
    fields = {name: getattr(found, name) for name in TextsOut.model_fields}  # asdict copies all
    return Response(orjson.dumps(fields), media_type=TEXT_TYPES[TextForm.JSON])


def _csv(found: TextPage) -> Response:
    rows = [[_cell(row[name]) for name in found.columns] for row in found.items]
    headers = {"MPT-Total": str(found.total), "MPT-Next-Offset": json.dumps(found.next_offset)}
    content = csv_text([found.columns, *rows])
    return Response(content, headers=headers, media_type=TEXT_TYPES[TextForm.CSV])


def _cell(value: Any) -> Any:
    return orjson.dumps(value).decode() if isinstance(value, list | dict) else value

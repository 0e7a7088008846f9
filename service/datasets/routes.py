"""Routes of uploads."""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path as FilePath
from typing import Annotated, Literal

from anyio import CancelScope
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from uuid6 import uuid7

from mptcore.specs import Problem
from mptcore.specs.vectors import TABLE_FORMATS, ColumnName, TableOptions
from service.accounts import audit, projects
from service.accounts.models import OWN
from service.accounts.permissions import check_still_valid, find, find_own, newest
from service.accounts.users import Caller
from service.datasets import store
from service.datasets.files import inspect, keep_options, move
from service.datasets.models import CONTENTS, Dataset
from service.datasets.schemas import DatasetChanges, DatasetOut, DatasetPage, DatasetSummary
from service.datasets.sizes import summary
from service.db.engine import Database
from service.experiments.schemas import ProjectName
from service.places import Places
from service.queue import quota, sizes
from service.queue.quota import Room
from service.refusals import ApiError, invalid
from service.settings import Settings
from service.vocabulary import Visibility, Whose
from service.web.dependencies import (
    Canceller,
    DatabaseDep,
    Reader,
    SettingsDep,
    Submitter,
)
from service.web.pagination import Cursor, Limit, WhoseQuery, page, read_cursor
from service.web.receiving import receive
from service.web.route import JsonBody, StrictRoute, UploadRoute

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=StrictRoute)
uploads = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=UploadRoute)

FileName = Annotated[
    str,
    Query(
        pattern=r"^[A-Za-z0-9 ._()-]{1,150}\.[A-Za-z0-9]{2,7}$",
        description="File name. Its ending, in small or capital letters, is the format.",
    ),
]
FORMATS = (*TABLE_FORMATS, "npy", "npz", "txt", "jsonl")
DatasetId = Annotated[str, Path(max_length=100, description="Id of the upload.")]


def reading_options(
    header: Annotated[
        bool | None,
        Query(
            description="Whether the first line of a text file has the names of the columns: yes "
            "or no. Default: decided by its cells."
        ),
    ] = None,
    sep: Annotated[
        Literal[",", ";", "tab", "|"] | None,
        Query(description="Separator of cells in a text file. Default: , in .csv, tab in .tsv."),
    ] = None,
    decimal: Annotated[
        Literal[".", ","], Query(description="Decimal separator in a text file.")
    ] = ".",
    thousands: Annotated[
        Literal[",", ".", " ", "'", "_"] | None,
        Query(description="Separator of groups of three digits in a text file."),
    ] = None,
    index: Annotated[
        list[ColumnName],
        Query(
            max_length=100,
            description="A column that identifies the rows and is no measurement; repeatable. It "
            "is kept as an id.",
        ),
    ] = [],  # noqa: B006
    drop_non_numeric: Annotated[
        bool, Query(description="Whether all columns that are not numbers are left out.")
    ] = False,
) -> TableOptions:
    """Return the options of a request that say how a table is read."""
    return TableOptions(
        header=header,
        sep=sep,
        decimal=decimal,
        thousands=thousands,
        index=(*index,),
        drop_non_numeric=drop_non_numeric,
    )


ReadingOptions = Annotated[TableOptions, Depends(reading_options)]


MAX_USER_UPLOADS = 2
"""Maximum number of uploads of a user that a process receives at the same time."""
SMALL_FILE_BYTES = 2**20
"""Maximum size of an upload whose inspection waits for no larger ones."""


@uploads.post(
    "",
    status_code=HTTPStatus.CREATED,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
    responses={200: {"model": DatasetOut, "description": "The same bytes were uploaded before"}},
)
async def upload(
    name: FileName,
    request: Request,
    response: Response,
    settings: SettingsDep,
    user: Submitter,
    options: ReadingOptions,
    visibility: Annotated[
        Visibility | None,
        Query(
            description="`private`; `project`: the members of its project may use it; or `lab`: "
            "everyone in the lab may. Default: `project` with a `project`, else `private`."
        ),
    ] = None,
    project: Annotated[
        ProjectName | None,
        Query(description="Name of a project of yours whose members may use it."),
    ] = None,
) -> DatasetOut:
    """Upload a file (the raw body) of numbers, N observations × D dimensions, or of text. If the
    same bytes were uploaded before with the same options, the answer is the existing data set under
    its first name; if that is in no project yet, it joins the given one. The answer states what was
    read and left out: show it to the user."""
    if request.headers.get("Content-Type", "").startswith("multipart/"):
        detail = "the body must be the file itself, not a form: curl --data-binary @FILE, not -F"
        raise invalid([Problem("/header/Content-Type", detail)])
    if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
        detail = f"the body must be the file itself, not compressed ({encoding[:20]})"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "compressed_body", detail)
    database: Database = request.app.state.database
    dataset = Dataset(
        id=uuid7().hex,
        owner_id=user.id,
        name=name,
        format=name.rsplit(".", 1)[1].lower(),
    )
    if dataset.format not in FORMATS:
        cure = ": decompress the file first" if dataset.format in ("gz", "zip", "bz2", "xz") else ""
        detail = f"the ending is one of {', '.join(FORMATS)}, not {dataset.format}{cure}"
        raise invalid([Problem("/query/name", detail)])
    if problems := options.problems(dataset.format):
        raise invalid([Problem(f"/query{p.pointer}", p.detail) for p in problems])
    dataset.options_sha256 = options.digest(dataset.format)
    folder = settings.all_incoming / dataset.id
    settled = True
    places: Places = request.app.state.uploads
    if places.is_full(user.id):
        detail = f"{MAX_USER_UPLOADS} uploads of yours are under way, the maximum: try again"
        headers = {"Retry-After": "5"}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_uploads", detail, headers=headers)
    async with places.place(user.id):
        try:
            arrival = _Arrival(
                database, settings, dataset, user, folder / dataset.file, options, project
            )
            room = await run_in_threadpool(arrival.begin, visibility)
            folder.mkdir(parents=True)
            received = await receive(request, folder / dataset.file, settings, room)
            dataset.bytes, dataset.sha256 = received.bytes, received.sha256
            if request.headers.get("Content-Type", "").startswith(FORM):
                await run_in_threadpool(_check_line_breaks, folder / dataset.file)
            kept = await run_in_threadpool(arrival.known)
            if kept is None:
                is_small = received.bytes <= SMALL_FILE_BYTES
                state = request.app.state
                inspections: Places = state.small_inspections if is_small else state.inspections
                async with inspections.place(user.id):
                    kept = await run_in_threadpool(arrival.accept)
        except BaseException:
            # It is unknown whether the moved file has a row: retention will check it.
            settled = not settings.datasets(dataset.id).exists()
            raise
        finally:  # also if the caller has disconnected
            if settled:
                with CancelScope(shield=True):
                    await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)
    if kept.id != dataset.id:
        response.status_code = HTTPStatus.OK
    return kept


FORM = "application/x-www-form-urlencoded"
"""Type that curl gives to a body unless it is told another."""


def _check_line_breaks(file: FilePath) -> None:
    """Refuse a text file without line breaks, which `curl -d` has removed. Raise ApiError."""
    if file.suffix[1:] not in ("csv", "tsv", "txt", "jsonl"):
        return
    with file.open("rb") as content:
        if any(
            b"\n" in piece or b"\r" in piece for piece in iter(lambda: content.read(2**16), b"")
        ):
            return
    detail = "the file has no line break: curl --data-binary @FILE keeps them, -d removes them"
    raise invalid([Problem("", detail)])


@dataclass(frozen=True)
class _Arrival:
    """A received file, and the row that it may become."""

    database: Database
    settings: Settings
    dataset: Dataset
    by: Caller
    file: FilePath
    options: TableOptions
    project: str | None

    def begin(self, visibility: Visibility | None) -> Room:
        """Put the row into its project, and return the room of its owner. Raises ApiError."""
        with self.database.snapshot() as session:
            project_id = projects.chosen(session, self.by.id, self.project, "/query")
            self.dataset.project_id = project_id
            chosen = projects.chosen_visibility(visibility, project_id, "/query")
            self.dataset.visibility = chosen
            return quota.room_of(session, self.by.id, self.settings.share)

    def _hold_project(self, session: Session) -> None:
        """Lock the project. Raises ApiError if the owner has left it meanwhile."""
        if self.dataset.project_id != OWN:
            quota.hold_project(session, self.by.id, self.dataset.project_id, "/query")

    def known(self) -> DatasetOut | None:
        """Return the existing data set with these bytes. The new file replaces the old one, which
        may be damaged. A concurrent delete waits for the lock and then finds the file in its place:
        if it were moved after the delete, it would stay there without a row."""
        with self.database.transaction() as session:
            check_still_valid(session, self.by)
            self._hold_project(session)
            first = store.lock_same(session, self.dataset)
            if first is None:
                return None
            self._join_project(session, first)
            keep_options(self.settings.datasets(first.id), first.reading)
            move(self.file, self.settings.datasets(first.id) / first.file)
            return _out(first)

    def _join_project(self, session: Session, first: Dataset) -> None:
        """Put an existing data set that is in no project into that of the request. Raises ApiError
        if it is in another one."""
        if self.dataset.project_id in (OWN, first.project_id):
            return
        if first.project_id != OWN:
            detail = (
                f"you uploaded these bytes before as {first.id} into project {first.project}, and "
                "a data set is in one project: share it with the lab, or delete it and upload the "
                "file again"
            )
            raise ApiError(HTTPStatus.CONFLICT, "in_another_project", detail)
        owner_id, project_id = self.by.id, self.dataset.project_id
        quota.check_project(session, owner_id, project_id, 0, first.kept_bytes)
        first.project_id = self.dataset.project_id
        if first.visibility == Visibility.PRIVATE:
            first.visibility = self.dataset.visibility
        session.flush()
        session.refresh(first, ["project"])
        changes = {"project": first.project, "visibility": first.visibility}
        audit.note(session, self.by, "dataset.changed", first.id, **changes)

    def accept(self) -> DatasetOut:
        """Inspect the file and store it. Raises ApiError."""
        max_cells = self.settings.limits.elements
        found = inspect(self.file, self.dataset.name, max_cells, self.options)
        for name in ("n", "dim", *CONTENTS):
            setattr(self.dataset, name, found.get(name))
        place = self.settings.datasets(self.dataset.id) / self.dataset.file
        try:
            with self.database.transaction() as session:
                check_still_valid(session, self.by)
                size = self.dataset.kept_bytes = sizes.of_dataset(self.dataset)
                quota.lock(session, self.by.id)  # two at once do not both take the last room
                self._hold_project(session)
                project_id = self.dataset.project_id
                quota.check_bytes(session, self.by.id, project_id, self.settings.share, size)
                keep_options(place.parent, self.dataset.reading)
                move(self.file, place)
                session.add(self.dataset)
                audit.note(session, self.by, "dataset.uploaded", self.dataset.id)
                session.flush()
                session.refresh(self.dataset, [*COLUMNS, "owner", "project"])
                return _out(self.dataset)
        except IntegrityError:  # another upload of these bytes was first
            move(place, self.file)
            shutil.rmtree(place.parent)
            first = self.known()
            if first is None:
                detail = "the data set of these bytes was deleted meanwhile: upload them again"
                raise ApiError(HTTPStatus.CONFLICT, "deleted_meanwhile", detail) from None
            return first


@router.get("")
def list_datasets(
    database: DatabaseDep,
    user: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    whose: WhoseQuery = Whose.MINE,
) -> DatasetPage:
    """List the caller's uploads or, with `whose=project` or `whose=lab`, those shared with the
    caller's projects or the lab, newest first."""
    before = read_cursor(cursor)
    with database.snapshot() as session:
        found = newest(session, user, Dataset, whose, limit + 1, before)
    kept, next_cursor = page(found, limit)
    items = [DatasetSummary.of(one, owner=one.owner.name) for one in kept]
    return DatasetPage(items=items, next_cursor=next_cursor)


@router.get("/{dataset_id}")
def get_dataset(dataset_id: DatasetId, database: DatabaseDep, user: Reader) -> DatasetOut:
    with database.snapshot() as session:
        return _out(find(session, user, Dataset, dataset_id))


@router.patch("/{dataset_id}")
def change_dataset(
    dataset_id: DatasetId, changes: JsonBody[DatasetChanges], database: DatabaseDep, user: Submitter
) -> DatasetOut:
    """Share an upload with its project or the lab, or make it private."""
    wanted = changes.model_dump(exclude_unset=True)
    with database.transaction() as session:
        found = find_own(session, user, Dataset, dataset_id)
        projects.choose_visibility(session, wanted, found)
        for name, value in wanted.items():
            setattr(found, name, value)
        audit.note(session, user, "dataset.changed", dataset_id, **wanted)
        return _out(found)


@router.delete("/{dataset_id}", status_code=HTTPStatus.NO_CONTENT)
def delete_dataset(
    dataset_id: DatasetId, database: DatabaseDep, settings: SettingsDep, user: Canceller
) -> None:
    """Delete an upload. Queued experiments that use it will fail with that reason."""
    leftover = settings.all_incoming / dataset_id  # retention deletes the file if this is cut off
    with database.transaction() as session:
        found = find_own(session, user, Dataset, dataset_id)
        with suppress(OSError):  # a full disk must not prevent what frees it
            leftover.mkdir(parents=True, exist_ok=True)
        session.execute(delete(Dataset).where(Dataset.id == found.id))
        audit.note(session, user, "dataset.deleted", dataset_id)
    for folder in (settings.datasets(dataset_id), leftover):
        shutil.rmtree(folder, ignore_errors=True)


COLUMNS = (
    "name", "format", "bytes", "sha256", "n", "dim", *CONTENTS, "options_sha256", "created_at",
)  # fmt: skip


def _out(dataset: Dataset) -> DatasetOut:
    reading = dataset.reading or {}
    return DatasetOut.of(
        dataset,
        owner=dataset.owner.name,
        summary=summary(dataset),
        header=reading.get("header"),
        ids=reading.get("ids", []),
        left_out=reading.get("left_out", {}),
        warnings=reading.get("warnings", []),
    )

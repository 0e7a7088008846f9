"""The routes of uploads."""

import shutil
from datetime import datetime
from http import HTTPStatus
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from uuid6 import uuid7

from service.database import Database
from service.datasets import store
from service.datasets.files import Received, inspect, receive
from service.datasets.models import Dataset
from service.dependencies import DatabaseDep, SettingsDep, UserDep, WriterDep
from service.errors import ApiError
from service.experiments.schemas import moment

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

FileName = Annotated[
    str,
    Query(
        pattern=r"^[A-Za-z0-9 ._()-]{1,150}\.(npy|npz|csv|parquet|txt|jsonl)$",
        description="the file's own name, which says its format",
    ),
]
DatasetId = Annotated[str, Path(max_length=100)]


class DatasetOut(BaseModel):
    """An upload: of numbers, whose `id`, `n` and `dim` go into a spec with the source upload; or of
    text (`dim` is null), whose `id` and the `column` that holds it go into one with the source
    text."""

    id: str
    name: str
    format: str
    bytes: int
    sha256: str
    n: int
    dim: int | None
    arrays: dict[str, list[int]] | None
    columns: list[str] | None
    created_at: datetime


class DatasetList(BaseModel):
    items: list[DatasetOut]


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
)
async def upload(
    name: FileName, request: Request, database: DatabaseDep, settings: SettingsDep, user: UserDep
) -> DatasetOut:
    """Upload a file (the body, as it is) of numbers, N observations × D dimensions, or
    of text."""
    dataset_id = uuid7().hex
    folder = settings.datasets(dataset_id)
    folder.mkdir(parents=True)
    file = folder / f"data.{name.rsplit('.', 1)[1]}"
    try:
        received = await receive(request, file, settings.max_upload_bytes)
        async with request.app.state.inspections:
            return await run_in_threadpool(
                _accept, database, user.id, dataset_id, name, file, received
            )
    except BaseException:  # also a caller that went away
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _accept(
    database: Database,
    owner_id: int,
    dataset_id: str,
    name: str,
    file: FilePath,
    received: Received,
) -> DatasetOut:
    found = inspect(file)
    shape: dict[str, Any] = {
        key: found.get(key) for key in ("format", "n", "dim", "arrays", "columns")
    }
    dataset = Dataset(id=dataset_id, owner_id=owner_id, name=name, **vars(received), **shape)
    with database.transaction() as session:
        session.add(dataset)
        session.flush()
        session.refresh(dataset)
        return _out(dataset)


@router.get("")
def list_datasets(database: DatabaseDep, user: UserDep) -> DatasetList:
    """The caller's uploads, newest first."""
    with database.snapshot() as session:
        return DatasetList(items=[_out(one) for one in store.of_owner(session, user.id)])


@router.get("/{dataset_id}")
def get_dataset(dataset_id: DatasetId, database: DatabaseDep, user: UserDep) -> DatasetOut:
    with database.snapshot() as session:
        found = store.find(session, user.id, dataset_id) if dataset_id.isalnum() else None
    if found is None:
        raise _not_found()
    return _out(found)


@router.delete("/{dataset_id}", status_code=HTTPStatus.NO_CONTENT)
def delete_dataset(
    dataset_id: DatasetId, database: WriterDep, settings: SettingsDep, user: UserDep
) -> None:
    """Delete an upload. Experiments that still wait for it will fail and say so."""
    with database.transaction() as session:
        found = store.find(session, user.id, dataset_id) if dataset_id.isalnum() else None
        if found is None:
            raise _not_found()
        session.delete(found)
    shutil.rmtree(settings.datasets(dataset_id), ignore_errors=True)


def _not_found() -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", "you have no data set of this id")


def _out(dataset: Dataset) -> DatasetOut:
    created_at = moment(dataset.created_at)
    assert created_at is not None
    names = ("id", "name", "format", "bytes", "sha256", "n", "dim", "arrays", "columns")
    return DatasetOut(created_at=created_at, **{name: getattr(dataset, name) for name in names})

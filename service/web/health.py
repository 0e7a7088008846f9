"""Liveness and readiness of the process."""

from http import HTTPStatus

from fastapi import APIRouter
from sqlalchemy import text

from service.refusals import ApiError
from service.schemas import ResponseModel
from service.web.bodies import PublicRoute
from service.web.dependencies import DatabaseDep

router = APIRouter(tags=["health"], route_class=PublicRoute)


class Health(ResponseModel):
    status: str
    """`ok` or `ready`."""


@router.get("/healthz")
async def healthz() -> Health:
    """Report that the process answers. It needs no free thread."""
    return Health(status="ok")


@router.get("/readyz")
def readyz(database: DatabaseDep) -> Health:
    """Report that the database answers and accepts writes, and has the tables of this version; else
    503."""
    database.check_revision()
    with database.snapshot() as session:
        session.execute(text("SELECT 1 FROM experiments LIMIT 1"))
    trouble = database.check_writable()
    if trouble is not None:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "not_writable", trouble)
    return Health(status="ready")

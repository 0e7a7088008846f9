"""Liveness and readiness of the process."""

from http import HTTPStatus

from fastapi import APIRouter
from sqlalchemy import text

from mptcore.specs import missing_family
from mptcore.specs.outside import outside_families
from service import store_space
from service.refusals import ApiError
from service.schemas import ResponseModel
from service.web.dependencies import DatabaseDep, SettingsDep
from service.web.route import ProbeRoute

router = APIRouter(tags=["health"], route_class=ProbeRoute)


class Health(ResponseModel):
    status: str
    """`ok` or `ready`."""


class Readiness(Health):
    warnings: list[str]
    """Problems for an administrator that stop no request: a full disk of the store, and packages of
    families that cannot be imported."""


@router.get("/healthz")
async def healthz() -> Health:
    """Report that the process answers. It needs no free thread."""
    return Health(status="ok")


@router.get("/readyz")
def readyz(database: DatabaseDep, settings: SettingsDep) -> Readiness:
    """Report that the database answers and accepts writes, and has the tables of this version; else
    503. A full disk of the store is a warning: no run starts, but reading and deleting go on."""
    database.check_revision()
    with database.snapshot() as session:
        session.execute(text("SELECT 1 FROM experiments LIMIT 1"))
    trouble = database.check_writable()
    if trouble is not None:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "not_writable", trouble)
    shortage = store_space.shortage(settings)
    missing = [missing_family(family) for family in outside_families().unusable]
    warnings = [text for text in (shortage, *missing) if text is not None]
    return Readiness(status="ready", warnings=warnings)

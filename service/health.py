"""Whether the process lives, and whether it can serve."""

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import text

from service.bodies import PublicRoute
from service.dependencies import DatabaseDep

router = APIRouter(tags=["health"], route_class=PublicRoute)


class Health(BaseModel):
    status: str


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers: it needs no thread for that, which it may have none of."""
    return Health(status="ok")


@router.get("/readyz")
def readyz(database: DatabaseDep) -> Health:
    """The database answers too; else 503."""
    with database.snapshot() as session:
        session.execute(text("SELECT 1 FROM experiments LIMIT 1"))
    return Health(status="ready")

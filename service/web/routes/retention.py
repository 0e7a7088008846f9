"""Route for a preview of retention. The deletion itself runs automatically."""

from collections.abc import Iterable

from fastapi import APIRouter

from service.operations import retention
from service.schemas import ResponseModel
from service.web.bodies import StrictRoute
from service.web.dependencies import Admin, DatabaseDep, SettingsDep

router = APIRouter(prefix="/v1", tags=["users"], route_class=StrictRoute)


class Freed(ResponseModel):
    """Experiments of an owner to delete or purge for one reason."""

    owner: str
    """Name of the owner."""
    why: str
    """Reason."""
    count: int
    """Number of experiments."""
    bytes: int
    """Size of their files in bytes."""


class RetentionOut(ResponseModel):
    """Experiments that retention would remove now."""

    delete: list[Freed]
    """Experiments to delete: nobody can read them afterwards."""
    purge: list[Freed]
    """Deleted experiments whose records and files would be removed for good."""


@router.get("/retention")
def get_retention(database: DatabaseDep, settings: SettingsDep, user: Admin) -> RetentionOut:
    """Return what retention would delete now. It reads the size of each file, so call it rarely."""
    return RetentionOut(
        delete=_freed(retention.planned(database, settings)),
        purge=_freed(retention.purgeable(database, settings)),
    )


def _freed(removals: Iterable[retention.Removal]) -> list[Freed]:
    return [
        Freed(owner=owner, why=why, count=len(sizes), bytes=sum(sizes))
        for (owner, why), sizes in retention.by_cause(removals).items()
    ]

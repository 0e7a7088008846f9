"""Route of what retention would delete. The deletion itself runs automatically."""

from collections.abc import Iterable

from fastapi import APIRouter
from pydantic import BaseModel

from service import sweep
from service.bodies import StrictRoute
from service.dependencies import Admin, DatabaseDep, SettingsDep

router = APIRouter(prefix="/v1", tags=["users"], route_class=StrictRoute)


class Freed(BaseModel):
    """Experiments and bytes of one owner, for one cause."""

    owner: str
    why: str
    count: int
    bytes: int


class RetentionOut(BaseModel):
    """`delete` is what no one would see any more, `purge` what was deleted before and would be
    gone."""

    delete: list[Freed]
    purge: list[Freed]


@router.get("/retention")
def get_retention(database: DatabaseDep, settings: SettingsDep, user: Admin) -> RetentionOut:
    """Return what retention would delete now. It reads the size of each file, so call it rarely."""
    return RetentionOut(
        delete=_freed(sweep.planned(database, settings)),
        purge=_freed(sweep.purgeable(database, settings)),
    )


def _freed(removals: Iterable[sweep.Removal]) -> list[Freed]:
    return [
        Freed(owner=owner, why=why, count=len(sizes), bytes=sum(sizes))
        for (owner, why), sizes in sweep.by_cause(removals).items()
    ]

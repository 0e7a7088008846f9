"""What a user may keep in the store, and how many uploads at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.datasets.models import Dataset
from service.errors import ApiError
from service.experiments.models import Artifact, Experiment
from service.settings import Settings
from service.users import User


@contextmanager
def one_of_few(under_way: Counter[int], owner_id: int, most: int) -> Iterator[None]:
    """Count an upload of a user while the block runs. Raises ApiError if there are too many."""
    if under_way[owner_id] >= most:
        detail = f"{most} uploads of yours are under way, which is the most: try again"
        headers = {"Retry-After": "5"}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_uploads", detail, headers=headers)
    under_way[owner_id] += 1
    try:
        yield
    finally:
        under_way[owner_id] -= 1


def room(session: Session, settings: Settings, owner_id: int) -> int | None:
    """Return how many more bytes the user may upload; None without a quota."""
    if settings.user_bytes is None:
        return None
    uploads = select(func.coalesce(func.sum(Dataset.bytes), 0)).where(Dataset.owner_id == owner_id)
    kept: int = session.execute(uploads).scalar_one()
    return settings.user_bytes - int(kept) - _artifact_bytes(session, settings, owner_id)


def lock_room(session: Session, settings: Settings, owner_id: int) -> int | None:
    """Return the same and lock it, so that no other upload of the user uses it before the
    transaction ends."""
    if settings.user_bytes is not None:
        session.execute(select(User.id).where(User.id == owner_id).with_for_update())
    return room(session, settings, owner_id)


def _artifact_bytes(session: Session, settings: Settings, owner_id: int) -> int:
    """Return the bytes of the artifacts of the user's experiments that are not deleted."""
    query = (
        select(Artifact.experiment_id, Artifact.attempt, Artifact.file)
        .join(Experiment, Experiment.id == Artifact.experiment_id)
        .where(Experiment.owner_id == owner_id, Experiment.deleted_at.is_(None))
    )
    total = 0
    for experiment_id, attempt, file in session.execute(query):
        try:
            total += (settings.artifacts(experiment_id, attempt) / file).stat().st_size
        except FileNotFoundError:
            pass  # it is being deleted
    return total


def check(settings: Settings, room_bytes: int | None, needed: int) -> None:
    """Raises ApiError if `needed` exceeds the room."""
    if room_bytes is not None and needed > room_bytes:
        detail = (
            f"your data sets and artifacts may be {settings.user_bytes} bytes, of which "
            f"{max(0, room_bytes)} are left: delete data sets or experiments"
        )
        raise ApiError(HTTPStatus.CONFLICT, "storage_quota", detail)

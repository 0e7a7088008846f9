"""Finding uploads. Every query for a user names the owner."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.datasets.models import Dataset


def find(session: Session, owner_id: int, dataset_id: str) -> Dataset | None:
    """The data set of that id, if it is the owner's."""
    return session.scalar(
        select(Dataset).where(Dataset.id == dataset_id, Dataset.owner_id == owner_id)
    )


def lock_same(session: Session, owner_id: int, sha256: str, format: str) -> Dataset | None:
    """The owner's data set of these bytes, which no one deletes before the transaction ends."""
    return session.scalar(
        select(Dataset)
        .where(Dataset.owner_id == owner_id, Dataset.sha256 == sha256, Dataset.format == format)
        .order_by(Dataset.copy)
        .limit(1)
        .with_for_update()
    )


def exists(session: Session, dataset_id: str) -> bool:
    """Whether anyone has a data set of that id."""
    return session.get(Dataset, dataset_id) is not None


def newest(
    session: Session, owner_id: int, *, limit: int, before: str | None = None
) -> Sequence[Dataset]:
    """The owner's data sets, newest first, that are older than `before`."""
    query = select(Dataset).where(Dataset.owner_id == owner_id)
    if before is not None:
        query = query.where(Dataset.id < before)
    return session.scalars(query.order_by(Dataset.id.desc()).limit(limit)).all()

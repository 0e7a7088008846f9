"""Find and delete uploads."""

from sqlalchemy import delete, select
from sqlalchemy.orm import Session, joinedload

from service.queue import sizes
from service.tables.datasets import Dataset


def lock_same(session: Session, owner_id: int, sha256: str, format: str) -> Dataset | None:
    """Return the owner's data set with these bytes, locked against deletion until the transaction
    ends."""
    return session.scalar(
        select(Dataset)
        .where(Dataset.owner_id == owner_id, Dataset.sha256 == sha256, Dataset.format == format)
        .options(joinedload(Dataset.owner))
        .order_by(Dataset.copy)
        .limit(1)
        .with_for_update(of=Dataset)
    )


def exists(session: Session, dataset_id: str) -> bool:
    """Return whether anyone has a data set with this id."""
    return session.get(Dataset, dataset_id) is not None


def remove(session: Session, dataset_id: str) -> int | None:
    """Delete a data set, and return the bytes that it counted for. None where another request has
    deleted it."""
    counted = (Dataset.bytes, Dataset.arrays, Dataset.columns, Dataset.constant, Dataset.missing)
    gone = delete(Dataset).where(Dataset.id == dataset_id).returning(*counted)
    found = session.execute(gone).one_or_none()
    return None if found is None else sizes.of_dataset(found)

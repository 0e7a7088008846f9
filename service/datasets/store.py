"""Find uploads."""

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from service.datasets.models import Dataset


def lock_same(session: Session, dataset: Dataset) -> Dataset | None:
    """Return the owner's data set with the same bytes that is read in the same way, locked against
    deletion until the transaction ends."""
    keys = ("owner_id", "sha256", "format", "options_sha256")
    return session.scalar(
        select(Dataset)
        .where(*(getattr(Dataset, key) == getattr(dataset, key) for key in keys))
        .options(joinedload(Dataset.owner))
        .order_by(Dataset.copy)
        .limit(1)
        .with_for_update(of=Dataset)
    )


def exists(session: Session, dataset_id: str) -> bool:
    """Return whether anyone has a data set with this id."""
    return session.get(Dataset, dataset_id) is not None

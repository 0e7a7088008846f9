"""Find uploads. Every query names the owner, or the reader who may see them."""

from collections.abc import Collection, Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session, joinedload

from service.tables.datasets import Dataset
from service.tables.visibility import Whose, readable, reader, shared


def find_readable(
    session: Session, reader_id: int, dataset_id: str, reads_all: bool = False
) -> Dataset | None:
    """Return the data set if the reader owns it, if it is shared with the lab, or if the reader may
    read everything."""
    query = select(Dataset).where(Dataset.id == dataset_id, readable(Dataset))
    query = query.options(joinedload(Dataset.owner))
    return session.scalar(query, reader(reader_id, reads_all))


def readable_of(
    session: Session, reader_id: int, dataset_ids: Collection[str]
) -> Sequence[Dataset]:
    """Return those of these data sets that the reader may see."""
    if not dataset_ids:
        return ()
    query = select(Dataset).where(Dataset.id.in_(dataset_ids), readable(Dataset))
    return session.scalars(query, reader(reader_id)).all()


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


def remove(session: Session, dataset_id: str) -> bool:
    """Delete a data set. False where another request has deleted it."""
    gone = delete(Dataset).where(Dataset.id == dataset_id).returning(Dataset.id)
    return session.execute(gone).one_or_none() is not None


def newest(
    session: Session,
    owner_id: int,
    *,
    whose: Whose = Whose.MINE,
    limit: int,
    before: str | None = None,
) -> Sequence[Dataset]:
    """Return the owner's data sets, those shared with the lab, or all, newest first, older than
    `before`."""
    query = select(Dataset).options(joinedload(Dataset.owner))
    if whose == Whose.MINE:
        query = query.where(Dataset.owner_id == owner_id)
    if whose == Whose.LAB:
        query = query.where(shared(Dataset))
    if before is not None:
        query = query.where(Dataset.id < before)
    return session.scalars(query.order_by(Dataset.id.desc()).limit(limit)).all()

"""Finding uploads. Every query names the owner."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.datasets.models import Dataset


def find(session: Session, owner_id: int, dataset_id: str) -> Dataset | None:
    """The data set of that id, if it is the owner's."""
    return session.scalar(
        select(Dataset).where(Dataset.id == dataset_id, Dataset.owner_id == owner_id)
    )


def of_owner(session: Session, owner_id: int) -> Sequence[Dataset]:
    """The owner's data sets, newest first."""
    query = select(Dataset).where(Dataset.owner_id == owner_id)
    return session.scalars(query.order_by(Dataset.id.desc())).all()

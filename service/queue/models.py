"""Table of the queue beside its experiments."""

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.db.engine import Base

LEAD_S = 5.0
"""Time for which a controller leads after its last transaction."""


class Controller(Base):
    """One row: which process looks after the queue, and until when it may."""

    __tablename__ = "controller"

    id: Mapped[int] = mapped_column(primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    until: Mapped[float]

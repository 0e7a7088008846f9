"""Tables of the queue beside its experiments: the controller, and changes to the bytes that users
keep."""

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from service.db.engine import Base, LargeId

LEAD_S = 5.0
"""Time for which a controller leads after its last transaction."""


class Controller(Base):
    """One row: which process looks after the queue, and until when it may."""

    __tablename__ = "controller"

    id: Mapped[int] = mapped_column(primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    until: Mapped[float]


class ByteChange(Base):
    """A change of the bytes that a user keeps. The sum of a user's rows is the size of the user's
    data without checkpoints."""

    __tablename__ = "byte_changes"

    id: Mapped[int] = mapped_column(LargeId, primary_key=True)
    owner_id: Mapped[int] = mapped_column(index=True)
    bytes: Mapped[int] = mapped_column(BigInteger)

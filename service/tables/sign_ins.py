"""Tables of signed-in browsers and of sign-in codes."""

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from service.db.engine import Base, now
from service.tables.users import ApiKey


class SignIn(Base):
    """A signed-in browser."""

    __tablename__ = "sign_ins"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey(ApiKey.id))
    secret_sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    previous_sha256: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """Digest of the cookie before the last renewal."""
    renewed_at: Mapped[float] = mapped_column(default=now())
    expires_at: Mapped[float]


class SignInCode(Base):
    """Signs one browser in, once."""

    __tablename__ = "sign_in_codes"

    sha256: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey(ApiKey.id))
    expires_at: Mapped[float]

"""Users and their API keys."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from sqlalchemy import ForeignKey, LargeBinary, String, bindparam, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.database import Base, now

LOCAL_USER = "local"


class User(Base):
    """Who owns experiments."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    created_at: Mapped[float] = mapped_column(default=now())


class ApiKey(Base):
    """A key is `mpt_<id>_<secret>`; of the 256-bit secret only its SHA-256 is kept."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    secret_sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    created_at: Mapped[float] = mapped_column(default=now())
    revoked_at: Mapped[float | None]


_KEY = (
    select(User, ApiKey.secret_sha256)
    .join(ApiKey, ApiKey.user_id == User.id)
    .where(ApiKey.id == bindparam("key_id"), ApiKey.revoked_at.is_(None))
)
"""Asked by every request, hence made once."""


def user_of_key(session: Session, key: str) -> User | None:
    """Whose key this is, if it is one that is in force."""
    prefix, _, rest = key.partition("_")
    key_id, _, secret = rest.partition("_")
    if prefix != "mpt" or not key_id.isalnum() or not key.isascii():
        return None
    found = session.execute(_KEY, {"key_id": key_id}).one_or_none()
    if found is None or not hmac.compare_digest(found.secret_sha256, _digest(secret)):
        return None
    user: User = found.User
    return user


def ensure_key(session: Session, name: str, key_file: Path) -> None:
    """Make the user of that name and the key in `key_file` (mode 0600), or know them again."""
    user = session.scalar(select(User).where(User.name == name))
    if user is None:
        user = User(name=name)
        session.add(user)
        session.flush()
    key = _read_or_make(key_file)
    _, key_id, secret = key.split("_")
    if session.get(ApiKey, key_id) is None:
        session.add(ApiKey(id=key_id, user_id=user.id, secret_sha256=_digest(secret)))


def _read_or_make(key_file: Path) -> str:
    key = f"mpt_{secrets.token_hex(8)}_{secrets.token_hex(32)}"
    try:
        descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return key_file.read_text().strip()
    with open(descriptor, "w") as file:
        file.write(key + "\n")
    return key


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()

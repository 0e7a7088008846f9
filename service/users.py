"""Users and their API keys."""

import hashlib
import hmac
import logging
import os
import re
import secrets
from pathlib import Path
from tempfile import NamedTemporaryFile

from sqlalchemy import ForeignKey, LargeBinary, String, bindparam, false, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.database import Base, now

log = logging.getLogger(__name__)

LOCAL_USER = "local"


class User(Base):
    """Who owns experiments."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    created_at: Mapped[float] = mapped_column(default=now())
    shares: Mapped[int] = mapped_column(default=1, server_default="1")
    """Slurm's RawShares: of two users who both wait, one of two shares gets twice as much."""
    max_running: Mapped[int | None]
    max_submitted: Mapped[int | None]
    """In place of the limits of the settings."""
    may_jump: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether a priority above 100 is taken from this user: it goes before everyone's."""


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
    """What no crash leaves half written: a new key is on the disk before it has the file's name."""
    if (kept := _read(key_file)) is not None:
        return kept
    key = f"mpt_{secrets.token_hex(8)}_{secrets.token_hex(32)}"
    with NamedTemporaryFile("w", dir=key_file.parent, prefix=".key-", delete=False) as file:
        file.write(key + "\n")  # mode 0600
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, key_file)
    folder = os.open(key_file.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return key


def _read(key_file: Path) -> str | None:
    """The key, if there is a whole one."""
    try:
        key = key_file.read_text().strip()
    except FileNotFoundError:
        return None
    if re.fullmatch("mpt_[0-9A-Za-z]{1,16}_[0-9A-Za-z]+", key):
        return key
    log.warning("%s holds no key: it is replaced", key_file)
    return None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()

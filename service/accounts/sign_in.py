"""Sign-ins of browsers: the content of their signed cookies and links, and the key that signs both.

A sign-in allows what its API key allows, while the key is valid. No table has sign-ins, so one
cookie alone cannot be ended. Links are made with a key only, never with a cookie, so that a stolen
cookie cannot create anything that outlives it.
"""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple, Self

from itsdangerous import BadData, URLSafeTimedSerializer
from sqlalchemy import func, or_, update
from sqlalchemy.orm import Session

from service.accounts.models import ApiKey
from service.accounts.users import KEY, Caller, KeyRefused, caller_of

LASTS_S = 7 * 86_400
LINK_LASTS_S = 600
SESSION_KEY_CHARACTERS = 64

SIGNED_OUT = "this browser was signed in by a key that is gone: sign in again"
LINK_USED = (
    "this sign-in link was used before or is older than ten minutes, or a later link of the same "
    "key was used: ask for another"
)


class SignIn(NamedTuple):
    """The key that a browser signs in with."""

    key_id: str
    digest: str
    """The first 16 bytes of the digest of the key's secret: the id alone would also name a key that
    was made again."""

    @classmethod
    def by(cls, session: Session, key_id: str) -> Self:
        """Return a sign-in with an existing key."""
        return cls(key_id, _short(session.get_one(ApiKey, key_id).secret_sha256))


def _short(digest: bytes) -> str:
    return digest[:16].hex()


def caller_of_sign_in(session: Session, sign_in: SignIn) -> tuple[Caller, bool]:
    """Return the same as `caller_of_key`, for the key of a sign-in. Raises KeyRefused."""
    row = session.execute(KEY, {"key_id": sign_in.key_id}).one_or_none()
    if row is None or _short(row.secret_sha256) != sign_in.digest:
        raise KeyRefused(SIGNED_OUT)
    return caller_of(row, by_cookie=True), bool(row.unnoted)


class Links:
    """Codes of links that sign one browser in, once, within ten minutes."""

    def __init__(self, session_key: str):
        self._serializer = URLSafeTimedSerializer(session_key, salt="sign-in link")

    def code(self, sign_in: SignIn) -> str:
        return self._serializer.dumps([*sign_in, time.time()])

    def read(self, code: str) -> tuple[SignIn, float]:
        """Return the sign-in of a code, and the time at which the code was made. Raises
        KeyRefused."""
        try:
            key_id, digest, made_at = self._serializer.loads(code, max_age=LINK_LASTS_S)
        except BadData:
            raise KeyRefused(LINK_USED) from None
        return SignIn(key_id, digest), made_at

    def use(self, session: Session, code: str) -> SignIn:
        """Use a code, and so the earlier ones of its key. Of requests with the same code, one
        succeeds. A use in the future does not count: the clock was ahead then. Raises
        KeyRefused."""
        sign_in, made_at = self.read(code)
        used_at = ApiKey.link_used_at
        is_unused = or_(func.coalesce(used_at, 0.0) < made_at, used_at > time.time())
        unused = update(ApiKey).where(ApiKey.id == sign_in.key_id, is_unused)
        used = unused.values(link_used_at=made_at).returning(ApiKey.id)
        if session.scalar(used) is None:
            raise KeyRefused(LINK_USED)
        return sign_in


def session_key(file: Path) -> str:
    """Return the key that signs cookies and links. Make it if the store has none: of processes that
    do so at the same time, all return the key of the first."""
    if not file.exists():
        with NamedTemporaryFile("w", dir=file.parent, prefix=".session-key-") as new:  # mode 0600
            new.write(secrets.token_hex(SESSION_KEY_CHARACTERS // 2))
            new.flush()
            os.fsync(new.fileno())
            with suppress(FileExistsError):
                os.link(new.name, file)
    key = file.read_text().strip()
    if len(key) < SESSION_KEY_CHARACTERS:
        raise ValueError(f"{file} is incomplete: delete it, and browsers sign in once more")
    return key

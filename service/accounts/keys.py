"""The text of an API key: `mpt_<id>_<secret>_<checksum>`. The checksum is the CRC32 of the text
before it in six base62 digits, as in GitHub's tokens. Older keys have none."""

import hashlib
import secrets
import string
import zlib

PREFIX = "mpt"
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
CHECKSUM_DIGITS = 6
MAX_ID = 16
"""Maximum length of an id in the database."""


class MalformedKey(ValueError):
    """The text is not an API key."""


class MistypedKey(ValueError):
    """The checksum does not match the rest of the key."""


def new_key() -> str:
    """Return a new key with an id of 64 random bits and a secret of 256."""
    body = f"{PREFIX}_{secrets.token_hex(8)}_{secrets.token_hex(32)}"
    return f"{body}_{checksum(body)}"


def checksum(body: str) -> str:
    rest = zlib.crc32(body.encode())
    digits = ""
    for _ in range(CHECKSUM_DIGITS):
        rest, digit = divmod(rest, len(BASE62))
        digits = BASE62[digit] + digits
    return digits


def parse(key: str) -> tuple[str, str]:
    """Return a key's id and secret. The checksum is part of the secret: without it the key is
    another one. Raises MalformedKey and MistypedKey."""
    parts = key.split("_")
    if len(parts) not in (3, 4) or parts[0] != PREFIX or not all(map(_is_word, parts)):
        raise MalformedKey
    if len(parts[1]) > MAX_ID:
        raise MalformedKey
    body, _, check = key.rpartition("_")
    if len(parts) == 4 and check != checksum(body):
        raise MistypedKey
    return parts[1], "_".join(parts[2:])


def digest(secret: str) -> bytes:
    """Return the stored digest of a secret. The secret has 256 random bits, so a slow hash would
    not protect it better."""
    return hashlib.sha256(secret.encode()).digest()


def _is_word(part: str) -> bool:
    return part.isascii() and part.isalnum()

"""File in which `mpt login` stores a URL and its key; only its user can read it."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_config_path


class Login(NamedTuple):
    """A URL and its key; None if nobody has logged in."""

    url: str | None = None
    key: str | None = None

    def key_for(self, url: str) -> str | None:
        """The key, which is sent only to its own URL."""
        return self.key if url == self.url else None


def file() -> Path:
    return user_config_path("mptlab") / "login.json"


def kept() -> Login:
    """Return the last stored login; empty if it cannot be read."""
    try:
        return Login(**json.loads(file().read_text()))
    except (OSError, ValueError, TypeError):
        return Login()


def keep(url: str, key: str) -> None:
    file().parent.mkdir(parents=True, exist_ok=True)
    new = file().with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as output:
        json.dump({"url": url, "key": key}, output)
    new.replace(file())


def forget() -> None:
    file().unlink(missing_ok=True)

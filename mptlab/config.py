"""URL and key of the service: from arguments, the environment, the file of `mpt login` or this
machine."""

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import httpx
from platformdirs import user_config_path, user_data_path

from mptlab.errors import Refused

DEFAULT_URL = "http://127.0.0.1:8765"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


LOCK = "serving.lock"
"""File in a store with the URL of its service. It is locked by the process that serves it."""
SERVED = re.compile(r"(?P<url>\S+) \(process (?P<process>\d+)\)\s*")


class Access(NamedTuple):
    """URL of a service, the key to use, and where the key comes from."""

    url: str
    key: str
    source: str


STORE = "the store of this machine's service"


def access_of(url: str | None, key: str | None) -> Access:
    """Return the URL and the key to use; arguments come first. Raises Refused."""
    login = stored_login()
    url = url or os.environ.get("MPT_URL") or login.url or served_url() or DEFAULT_URL
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise Refused({"detail": f"{url} is not a URL: start it with http:// or https://"})
    sources = {
        "the command or program": key,
        "MPT_API_KEY": os.environ.get("MPT_API_KEY"),
        "`mpt login`": login.key if url == login.url else None,
    }
    given = ((name, value) for name, value in sources.items() if value)
    source, api_key = next(given, (STORE, None))
    api_key = api_key or _local_key(url)
    if not (api_key.isascii() and api_key.isprintable()):
        raise Refused({"detail": "the API key has an invalid character: copy it again"})
    return Access(url, api_key, source)


def store() -> Path:
    """Return the embedded service's folder: MPT_STORE, or the user's data directory."""
    folder = os.environ.get("MPT_STORE")
    return Path(folder) if folder else user_data_path("mptlab")


def served_url() -> str | None:
    """Return the URL of the service that serves the store now, if there is one."""
    try:
        served = SERVED.fullmatch((store() / LOCK).read_text())
        if served is not None:
            os.kill(int(served["process"]), 0)  # only asks whether it runs
    except (OSError, OverflowError):
        return None
    return served["url"] if served else None


def _local_key(url: str) -> str:
    """Return the key of the service on this machine. It is sent to no other machine."""
    key_file = store() / "api-key"
    if httpx.URL(url).host not in LOOPBACK:
        detail = f"no API key for {url}: set MPT_API_KEY, or `mpt login --url {url}`"
        raise Refused({"detail": detail})
    try:
        return key_file.read_text().strip()
    except FileNotFoundError:
        detail = (
            "no API key: set MPT_API_KEY, or run `mpt login` for that of your lab, or start "
            f"`mpt serve`, which writes {key_file}"
        )
        raise Refused({"detail": detail}) from None


class Login(NamedTuple):
    """A URL and its key, which is sent only to this URL; None if nobody has logged in."""

    url: str | None = None
    key: str | None = None


def login_file() -> Path:
    return user_config_path("mptlab") / "login.json"


def stored_login() -> Login:
    """Return the last stored login; empty if it cannot be read."""
    try:
        return Login(**json.loads(login_file().read_text()))
    except (OSError, ValueError, TypeError):
        return Login()


def store_login(url: str, key: str) -> None:
    """Store a login in a file that only its user can read."""
    file = login_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as output:
        json.dump({"url": url, "key": key}, output)
    new.replace(file)

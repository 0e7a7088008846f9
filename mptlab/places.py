"""URL and key of the service: from arguments, the environment, `mpt login` or this machine."""

import os
from pathlib import Path

import httpx
from platformdirs import user_data_path

from mptlab import login
from mptlab.errors import Refused

DEFAULT_URL = "http://127.0.0.1:8765"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def url_and_key(url: str | None, key: str | None) -> tuple[str, str]:
    """Return the URL and the key to use; arguments come first. Raises Refused."""
    kept = login.kept()
    url = (url or os.environ.get("MPT_URL") or kept.url or DEFAULT_URL).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise Refused({"detail": f"{url} is not a URL: start it with http:// or https://"})
    key = key or os.environ.get("MPT_API_KEY") or kept.key_for(url) or _local_key(url)
    if not (key.isascii() and key.isprintable()):
        raise Refused({"detail": "the API key has an invalid character: copy it again"})
    return url, key


def store() -> Path:
    """Return the embedded service's folder: MPT_STORE, or the user's data directory."""
    given = os.environ.get("MPT_STORE")
    return Path(given) if given else user_data_path("mptlab")


def _local_key(url: str) -> str:
    """Return the key of the service on this machine. It is sent to no other machine."""
    key_file = store() / "api-key"
    if httpx.URL(url).host not in LOOPBACK:
        detail = f"no API key for {url}: set MPT_API_KEY, or `mpt login --url {url}`"
        raise Refused({"detail": detail})
    try:
        return key_file.read_text().strip()
    except FileNotFoundError:
        detail = f"no API key: set MPT_API_KEY, or start `mpt serve`, which writes {key_file}"
        raise Refused({"detail": detail}) from None

"""Certificates of authorities, read once in a test process. Each client of httpx reads them, which
takes twenty milliseconds, although nearly all services of the tests speak HTTP."""

import os
import ssl
from functools import cache
from typing import Any

from httpx._transports import default

_read = default.create_ssl_context  # type: ignore[attr-defined]


def read_certificates_once() -> None:
    """Have all clients of httpx made from now on share a context for the same certificates."""
    default.create_ssl_context = _shared  # type: ignore[attr-defined]


def _shared(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    places = tuple(map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
    return _context(places, verify, cert, trust_env)


@cache
def _context(places: object, verify: Any, cert: Any, trust_env: bool) -> ssl.SSLContext:
    return _read(verify, cert, trust_env)

"""What a browser sends by its cookie is to come from this service's own pages, not from another
site's that the user happens to look at."""

from http import HTTPStatus

from fastapi import Request
from starlette.datastructures import Headers

from service.errors import ApiError

READS = ("GET", "HEAD", "OPTIONS")


def check_own_page(request: Request) -> None:
    """Raises ApiError (403) where a request that may change something comes from elsewhere."""
    if request.method not in READS and not _is_own(request.headers):
        detail = "a browser's cookie serves this service's own pages alone: elsewhere give a key"
        raise ApiError(HTTPStatus.FORBIDDEN, "cross_origin", detail)


def _is_own(headers: Headers) -> bool:
    """By Sec-Fetch-Site, which browsers send where they trust the connection; else by Origin, of
    either scheme: a proxy may have ended TLS."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    host = headers.get("Host")
    return headers.get("Origin") in (f"http://{host}", f"https://{host}")

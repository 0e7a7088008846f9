"""CSRF protection: requests with a cookie must come from this service's own pages."""

from http import HTTPStatus

from fastapi import Request
from starlette.datastructures import Headers

from service.refusals import ApiError

READS = ("GET", "HEAD", "OPTIONS")


def check_own_page(request: Request) -> None:
    """Raises ApiError (403) if a request that may change something comes from another site."""
    if request.method not in READS and not _is_own(request.headers):
        detail = "a browser's cookie is only valid on this service's own pages: use a key elsewhere"
        raise ApiError(HTTPStatus.FORBIDDEN, "cross_origin", detail)


def _is_own(headers: Headers) -> bool:
    """Return whether a request comes from our own pages: by Sec-Fetch-Site, which browsers send on
    trusted connections; else by Origin with either scheme, because a proxy may terminate TLS."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    host = headers.get("Host")
    return headers.get("Origin") in (f"http://{host}", f"https://{host}")

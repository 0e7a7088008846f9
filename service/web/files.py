"""Files as answers."""

from http import HTTPStatus

from fastapi.responses import FileResponse
from starlette.responses import MalformedRangeHeader, RangeNotSatisfiable

from service.refusals import ApiError


class RangedFile(FileResponse):
    """A file, or the ranges of it that the request names. Wrong ranges are refused with a
    problem."""

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        headers = {"Content-Range": f"bytes */{file_size}"}
        try:
            return super()._parse_range_header(http_range, file_size)
        except RangeNotSatisfiable:
            status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            detail = f"the file has {file_size} bytes, counted from 0"
            raise ApiError(status, "range_not_satisfiable", detail, headers=headers) from None
        except MalformedRangeHeader:
            detail = "the header Range has the form bytes=0-99, bytes=100- or bytes=-100"
            raise ApiError(HTTPStatus.BAD_REQUEST, "bad_range", detail) from None

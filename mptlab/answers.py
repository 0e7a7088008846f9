"""Read the service's responses, and raise its errors."""

import httpx

from mptlab.errors import Json, Refused


def checked(response: httpx.Response) -> httpx.Response:
    """Return the response if it is a success. Raises Refused."""
    if response.is_error:
        raise Refused(_document(response), response.status_code)
    return response


def answer_of(response: httpx.Response) -> Json:
    """Return the JSON of a successful response, or an empty object if it has no body. Raises
    Refused."""
    content = checked(response).content
    if not content:
        return {}
    try:
        answer: Json = response.json()
    except ValueError:
        detail = f"the server at {response.url} is not MPT Lab: check the URL"
        raise Refused({"detail": detail}, response.status_code) from None
    return answer


def _document(response: httpx.Response) -> Json:
    try:
        document = response.json()
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"detail": f"HTTP {response.status_code}"}

"""Read the service's answers, and raise its refusals."""

import httpx

from mptlab.errors import Json, Refused


def checked(response: httpx.Response) -> httpx.Response:
    """The response where it is a success. Raises Refused."""
    if response.is_error:
        raise Refused(_document(response), response.status_code)
    return response


def answer_of(response: httpx.Response) -> Json:
    """The JSON of a success; an empty object where there is none. Raises Refused."""
    content = checked(response).content
    if not content:
        return {}
    try:
        answer: Json = response.json()
    except ValueError:
        detail = f"what answers at {response.url} is not MPT Lab: is the URL right?"
        raise Refused({"detail": detail}, response.status_code) from None
    return answer


def _document(response: httpx.Response) -> Json:
    try:
        document = response.json()
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"detail": f"HTTP {response.status_code}"}

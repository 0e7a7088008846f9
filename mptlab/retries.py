"""Send a request again after a pause that grows or that the service requests."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_random_exponential,
)

RETRY_S = 30.0
"""Seconds during which a request is retried, unless MPT_RETRY_S is set."""
LONGEST_PAUSE_S = 5.0
MAX_RETRY_AFTER_S = 60.0

TOO_OFTEN = 429
BUSY = (TOO_OFTEN, 502, 503, 504)
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
NOT_ANSWERED = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)

_growing = wait_random_exponential(multiplier=0.2, max=LONGEST_PAUSE_S)


def retry_s() -> float:
    return float(os.environ.get("MPT_RETRY_S", RETRY_S))


def send_again(
    send: Callable[[], httpx.Response],
    *,
    idempotent: bool,
    for_s: float,
    on_outage: Callable[[str], object],
) -> httpx.Response:
    """Send until there is a response, for at most `for_s` seconds. Return the last response, or
    raise httpx's last error. A request that is not idempotent is sent again only if nothing was
    sent, or if the server refused it unread. `on_outage` is called once, with the cause."""
    errors, statuses = (NOT_ANSWERED, BUSY) if idempotent else (NOT_SENT, (TOO_OFTEN,))

    def pause_s(state: RetryCallState) -> float:
        # No longer than the remaining time. At its end the request is sent a last time.
        assert state.outcome is not None
        wanted = 0.0 if state.outcome.failed else _retry_after_s(state.outcome.result())
        pause = max(_growing(state), min(wanted, MAX_RETRY_AFTER_S))
        return max(0.0, min(pause, for_s - (state.seconds_since_start or 0.0)))

    def report(state: RetryCallState) -> None:
        assert state.outcome is not None
        if state.attempt_number == 1:
            error = state.outcome.exception()
            on_outage(str(error) if error else f"HTTP {state.outcome.result().status_code}")

    def last_outcome(state: RetryCallState) -> httpx.Response:
        assert state.outcome is not None
        response: httpx.Response = state.outcome.result()
        return response

    retrying = Retrying(
        retry=retry_if_exception_type(errors)
        | retry_if_result(lambda response: response.status_code in statuses),
        stop=stop_after_delay(for_s),
        wait=pause_s,
        before_sleep=report,
        retry_error_callback=last_outcome,
    )
    return retrying(send)


def is_busy(response: httpx.Response) -> bool:
    return response.status_code in BUSY


def _retry_after_s(response: httpx.Response) -> float:
    """Return the header's seconds, or the seconds until its date; 0 if it has neither."""
    said = response.headers.get("Retry-After", "0")
    if said.isdecimal():
        return float(said)
    try:
        return (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0

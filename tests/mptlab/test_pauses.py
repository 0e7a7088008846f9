"""Retried requests, the number of retries, and the length of the pauses."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from mptlab import retries
from mptlab.retries import RETRY_S, is_busy, retry_s, send_again

PATIENT_S = 20.0
"""Longer than any of these tests takes."""


def answer(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers={k.replace("_", "-"): v for k, v in headers.items()})


class Service:
    """Answers in turn; then 200."""

    def __init__(self, *answers: httpx.Response | Exception):
        self.answers: Iterator[httpx.Response | Exception] = iter(answers)
        self.asked_at: list[float] = []
        self.told: list[str] = []

    def ask(self, *, idempotent: bool = True, for_s: float = PATIENT_S) -> httpx.Response:
        return send_again(self.send, idempotent=idempotent, for_s=for_s, on_outage=self.told.append)

    def send(self) -> httpx.Response:
        self.asked_at.append(time.monotonic())
        given = next(self.answers, answer(200))
        if isinstance(given, Exception):
            raise given
        return given

    @property
    def pauses_s(self) -> list[float]:
        pairs = zip(self.asked_at, self.asked_at[1:], strict=False)
        return [later - earlier for earlier, later in pairs]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_answer_is_retried(status: int) -> None:
    service = Service(answer(status))
    assert service.ask().status_code == 200
    assert service.told == [f"HTTP {status}"]
    assert is_busy(answer(status))


@pytest.mark.parametrize("status", [200, 400, 404, 409, 422, 428, 430, 500, 501, 505])
def test_other_answers_are_not_retried(status: int) -> None:
    service = Service(answer(status))
    assert service.ask().status_code == status
    assert (len(service.asked_at), service.told) == (1, [])
    assert not is_busy(answer(status))


NOT_SENT = [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow")]
NOT_ANSWERED = [httpx.ReadError("cut"), httpx.WriteError("cut"), httpx.ReadTimeout("slow"),
                httpx.RemoteProtocolError("gone")]  # fmt: skip


@pytest.mark.parametrize("error", [*NOT_SENT, *NOT_ANSWERED])
def test_idempotent_requests_are_retried_until_answered(error: Exception) -> None:
    service = Service(error, error)
    assert service.ask().status_code == 200
    assert len(service.asked_at) == 3
    assert service.told == [str(error)]  # once


@pytest.mark.parametrize("error", NOT_SENT)
def test_unsent_requests_are_retried(error: Exception) -> None:
    assert Service(error).ask(idempotent=False).status_code == 200


@pytest.mark.parametrize("error", NOT_ANSWERED)
def test_requests_that_may_have_arrived_are_not_retried(error: Exception) -> None:
    service = Service(error)
    with pytest.raises(type(error)):
        service.ask(idempotent=False)
    assert len(service.asked_at) == 1


def test_non_idempotent_requests_are_not_retried_when_busy() -> None:
    service = Service(answer(503))
    assert service.ask(idempotent=False).status_code == 503
    assert len(service.asked_at) == 1


def test_requests_refused_before_reading_are_retried() -> None:
    service = Service(answer(429, Retry_After="1"))
    assert service.ask(idempotent=False).status_code == 200
    assert service.pauses_s[0] >= 1


def test_errors_of_the_request_are_not_retried() -> None:
    service = Service(httpx.UnsupportedProtocol("ftp"))
    with pytest.raises(httpx.UnsupportedProtocol):
        service.ask()
    assert len(service.asked_at) == 1


def test_the_last_outcome_is_returned_at_the_timeout() -> None:
    service = Service(*[answer(503)] * 1000)
    began = time.monotonic()
    assert service.ask(for_s=0.5).status_code == 503
    assert len(service.asked_at) > 1
    assert time.monotonic() - began >= 0.5
    service = Service(*[httpx.ConnectError("refused")] * 1000)
    with pytest.raises(httpx.ConnectError, match="refused"):
        service.ask(for_s=0.0)
    assert len(service.asked_at) == 1


def test_pauses_are_limited_by_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert Service(answer(503, Retry_After="7")).ask(for_s=0.5).status_code == 200
    (pause,) = pauses
    assert 0 < pause < 0.5  # of which a little has passed


def test_a_retry_after_header_is_respected() -> None:
    service = Service(answer(503, Retry_After="1"))
    service.ask()
    assert service.pauses_s[0] >= 1


def seconds_of(said: str) -> float:
    return retries._retry_after_s(answer(503, Retry_After=said))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7.0), ("0", 0.0), ("", 0.0), ("soon", 0.0), ("1.5", 0.0)],
)
def test_retry_after_in_seconds(said: str, seconds: float) -> None:
    assert seconds_of(said) == seconds


def test_retry_after_as_a_date() -> None:
    at = datetime.now(UTC) + timedelta(seconds=500)
    assert seconds_of(format_datetime(at, usegmt=True)) == pytest.approx(500, abs=60)
    assert retries._retry_after_s(answer(503)) == 0.0


class Waited:
    """Number and length of the waits, as reported by tenacity."""

    def __init__(self, response: httpx.Response | None, attempt: int):
        self.attempt_number = attempt
        self.outcome = self
        self.failed = response is None
        self._response = response

    def result(self) -> httpx.Response | None:
        return self._response


def longest_pause_s(response: httpx.Response | None, attempt: int) -> float:
    return max(retries._pause_s(Waited(response, attempt)) for _ in range(300))  # type: ignore[arg-type]


def test_pauses_grow_up_to_a_bound() -> None:
    """A pause is random up to 0.2 s, doubled with each, and never above five."""
    longest = [longest_pause_s(None, attempt) for attempt in (1, 2, 3, 4, 5, 6, 20)]
    bounds = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    for found, bound in zip(longest, bounds, strict=True):
        assert 0.9 * bound < found <= bound


@pytest.mark.parametrize("said", ["soon", "-9"])
def test_an_invalid_retry_after_is_ignored(said: str) -> None:
    assert longest_pause_s(answer(503, Retry_After=said), 1) <= 0.2


def test_retry_after_is_limited_to_a_minute() -> None:
    assert longest_pause_s(answer(503, Retry_After="59"), 1) == 59
    assert longest_pause_s(answer(503, Retry_After="3600"), 1) == 60


def test_the_default_retry_time_is_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPT_RETRY_S", raising=False)
    assert retry_s() == RETRY_S == 30
    monkeypatch.setenv("MPT_RETRY_S", "2.5")
    assert retry_s() == 2.5

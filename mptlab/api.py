"""Submitting experiments, waiting for them, reading what came out."""

import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
from platformdirs import user_data_path

from mptlab.retries import is_busy, retry_s, send_again
from mptlab.sweeps import Sweep, points_of

log = logging.getLogger(__name__)

DEFAULT_URL = "http://127.0.0.1:8765"
UPLOAD_S = 600.0
"""How long the service may look at an upload before it answers."""

MOST_AT_ONCE = 1000
"""Experiments whose curves are asked for together."""

Json = dict[str, Any]


class Refused(Exception):
    """The service's answer was a problem (RFC 9457): its sentence, and the whole document."""

    def __init__(self, document: Json):
        super().__init__(document.get("detail") or document.get("title") or str(document))
        self.document = document


class Client:
    """A connection to the service.

    The URL is that given, else MPT_URL, else this machine's. The key is that given, else
    MPT_API_KEY, else what the embedded service left in its store (MPT_STORE).

    A request that may be sent again is, where the service does not answer or asks for it, for half
    a minute (MPT_RETRY_S); `on_outage` is told, once.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        timeout_s: float = 30.0,
        on_outage: Callable[[str], object] = log.warning,
    ):
        self.url = url or os.environ.get("MPT_URL", DEFAULT_URL)
        key = key or os.environ.get("MPT_API_KEY") or _local_key()
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)
        self._on_outage = on_outage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(
        self, spec: Mapping[str, Any], *, idempotency_key: str | None = None, **beside: Any
    ) -> Json:
        """Queue an experiment; `beside` is name, tags, note, priority, visibility, after, cache.
        Where one had computed the same, this is that one, and has `cached_from`. What is sent again
        under the same idempotency key, by default one of this call's own, is queued once.
        Raises Refused."""
        return self._once("/v1/experiments", {"spec": spec, **beside}, idempotency_key)

    def batch(
        self, submissions: Iterable[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[str]:
        """Queue many experiments, all or none: each a mapping with `spec` and what stands beside
        it. Their ids, in order; those of before where one had computed the same. Raises Refused."""
        body = {"experiments": list(submissions)}
        answer = self._once("/v1/experiments:batch", body, idempotency_key)
        return [one["id"] for one in answer["items"]]

    def sweep(
        self,
        spec: Mapping[str, Any],
        grid: Mapping[str, Iterable[Any]] | None = None,
        *,
        idempotency_key: str | None = None,
        **beside: Any,
    ) -> Sweep:
        """Queue an experiment for each combination of values of some fields, by their dotted paths:
        `client.sweep(spec, {"model.latent_dim": range(1, 13)})`. In place of a grid, `list=[…]`
        gives the points, or `random={…}` draws them; `beside` is also name, tags, note, priority,
        visibility, concurrency, after, cache. Raises Refused."""
        points = points_of(grid) if grid is not None else {}
        body = {"spec": spec, **points, **beside}
        return Sweep(self, self._once("/v1/sweeps", body, idempotency_key)["id"])

    def sweeps(self, **filters: Any) -> Iterator[Json]:
        """Your sweeps, newest first; `whose="lab"` lists what is shared."""
        return self._pages("/v1/sweeps", filters)

    def upload(self, file: Path) -> Json:
        """Upload a data set, of numbers or of text; its id goes into a spec. The same bytes are one
        data set however often they are sent. Raises Refused."""

        query = {"name": file.name}
        patience = httpx.Timeout(self._http.timeout.connect, read=UPLOAD_S)

        def send() -> httpx.Response:
            with file.open("rb") as content:
                return self._http.post("/v1/datasets", params=query, content=content,
                                       timeout=patience)  # fmt: skip

        return _answer(self._send(send, idempotent=True))

    def validate(self, spec: Mapping[str, Any]) -> Json:
        """The resolved spec, how long it would run, what memory it would take, where it would stand
        in the queue, and whether it was computed before. Raises Refused."""
        body = {"spec": spec}
        return self._call("POST", "/v1/experiments:validate", idempotent=True, json=body)

    def get(self, experiment_id: str) -> Json:
        """Where an experiment stands, with its metrics so far."""
        return self._call("GET", f"/v1/experiments/{experiment_id}")

    def experiments(self, **filters: Any) -> Iterator[Json]:
        """Your experiments, newest first, over all pages: without their specs, or with
        `fields="full"` (and `limit` at most 50) with them; `whose="lab"` lists what is shared.
        `filter="metrics.lml > -61 and tag = x"`, `order_by="metrics.lml desc"`, and status, tag,
        family, name, owner, q, created_after and the like choose among them. Raises Refused."""
        return self._pages("/v1/experiments", filters)

    def _pages(self, path: str, filters: Mapping[str, Any]) -> Iterator[Json]:
        cursor = None
        while True:
            query = {**filters, "cursor": cursor} if cursor else filters
            page = self._call("GET", path, params=query)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def cancel(self, experiment_id: str) -> Json:
        """Ask for an experiment to end."""
        return self._call("POST", f"/v1/experiments/{experiment_id}:cancel", idempotent=True)

    def pause(self, experiment_id: str) -> Json:
        """Ask for an experiment to be set aside."""
        return self._call("POST", f"/v1/experiments/{experiment_id}:pause", idempotent=True)

    def resume(self, experiment_id: str) -> Json:
        """Put a paused experiment back in the queue."""
        return self._call("POST", f"/v1/experiments/{experiment_id}:resume")

    def retry(self, experiment_id: str, *, idempotency_key: str | None = None) -> Json:
        """Queue a new experiment like one that failed or was cancelled; the key as in `submit`."""
        return self._once(f"/v1/experiments/{experiment_id}:retry", None, idempotency_key)

    def change(self, experiment_id: str, **changes: Any) -> Json:
        """Change what stands beside the spec: name, tags, note, priority, visibility ("private" or
        "lab"), pinned."""
        return self._call("PATCH", f"/v1/experiments/{experiment_id}", json=changes)

    def delete(self, experiment_id: str) -> None:
        """Delete an experiment that does not run."""
        self._call("DELETE", f"/v1/experiments/{experiment_id}")

    def me(self) -> Json:
        """Whose key this is, and what it allows."""
        return self._call("GET", "/v1/me")

    def sign_in_url(self) -> str:
        """A page that signs one browser in with this key, once, within ten minutes."""
        return f"{self.url}{self._call('POST', '/v1/sign-in-codes')['path']}"

    def users(self) -> list[Json]:
        """All users; for admins, as what follows."""
        found: list[Json] = self._call("GET", "/v1/users")["items"]
        return found

    def add_user(self, name: str, role: str = "member") -> Json:
        return self._call("POST", "/v1/users", json={"name": name, "role": role})

    def change_user(self, name: str, **changes: Any) -> Json:
        """Another `role`, or `active=False`: the user's keys serve no longer."""
        return self._call("PATCH", f"/v1/users/{name}", json=changes)

    def keys(self, name: str) -> list[Json]:
        """A user's keys: your own, or for an admin anyone's."""
        found: list[Json] = self._call("GET", f"/v1/users/{name}/keys")["items"]
        return found

    def add_key(self, user: str, **how: Any) -> Json:
        """A new key of a user's, shown in `key` this once; `how` is name (what it is for), scopes,
        lasts_days."""
        return self._call("POST", f"/v1/users/{user}/keys", json=how)

    def revoke_key(self, name: str, key_id: str) -> None:
        """Revoke a key: it serves no request that comes after."""
        self._call("DELETE", f"/v1/users/{name}/keys/{key_id}")

    def audit(self, **filters: Any) -> Iterator[Json]:
        """Who did what to which object, newest first; `actor` and `object_id` filter."""
        return self._pages("/v1/audit", filters)

    def queue(self) -> Json:
        """Your share of the server and your limits, and what you have waiting, next first."""
        return self._call("GET", "/v1/queue")

    def workers(self) -> list[Json]:
        """The workers that live."""
        found: list[Json] = self._call("GET", "/v1/workers")["items"]
        return found

    def wait(
        self,
        experiment_id: str,
        timeout_s: float | None = None,
        on_change: Callable[[Json], object] = lambda experiment: None,
        poll_s: float = 0.2,
    ) -> Json:
        """Wait until an experiment has ended, and return it; `on_change` sees it at every look.
        Once the service has answered, an outage is waited for as well. Raises TimeoutError."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        experiment = self.get(experiment_id)
        while True:
            on_change(experiment)
            if experiment["terminal"]:
                return experiment
            if time.monotonic() > deadline:
                raise TimeoutError(f"{experiment_id} is {experiment['status']} after {timeout_s} s")
            time.sleep(max(0.0, min(poll_s, deadline - time.monotonic())))
            experiment = self._look(f"/v1/experiments/{experiment_id}", deadline)

    def _look(self, path: str, deadline: float) -> Json:
        """How it stands with what is there, however long the service is away."""
        send = partial(self._http.get, path)
        for_s = max(0.0, deadline - time.monotonic())
        try:
            response = self._send(send, idempotent=True, for_s=for_s)
        except httpx.TransportError as error:
            raise TimeoutError(f"{self.url} does not answer: {error}") from error
        if is_busy(response):
            raise TimeoutError(f"{self.url} does not answer: HTTP {response.status_code}")
        return _answer(response)

    def curves(
        self,
        experiment_id: str,
        series: str | None = None,
        max_points: int = 100_000,
        **labels: Any,
    ) -> list[Json]:
        """The series of an experiment by column: all, or those of one name and with the given
        labels."""
        path = f"/v1/experiments/{experiment_id}/curves" + (f"/{series}" if series else "")
        answer = self._call("GET", path, params={"max_points": max_points, **labels})
        found: list[Json] = answer["series"]
        return found

    def curves_of(
        self,
        experiment_ids: Iterable[str],
        series: Sequence[str] | None = None,
        max_points: int = 100_000,
        **labels: Any,
    ) -> list[Json]:
        """The curves of many experiments, in their order, each with its `series` by column: all, or
        those of some names and with the given labels, a value or a list of values each. Of every
        thousand experiments, at most `max_points` points. Raises Refused."""
        ids = list(experiment_ids)
        found: list[Json] = []
        for first in range(0, len(ids), MOST_AT_ONCE):
            body = {"ids": ids[first : first + MOST_AT_ONCE], "series": series, "labels": labels,
                    "max_points": max_points}  # fmt: skip
            answer = self._call("POST", "/v1/curves:batchGet", idempotent=True, json=body)
            found += answer["items"]
        return found

    def artifacts(self, experiment_id: str) -> list[Json]:
        """The files that an experiment left: weights, pictures."""
        found: list[Json] = self._call("GET", f"/v1/experiments/{experiment_id}/artifacts")["items"]
        return found

    def artifact(self, experiment_id: str, name: str) -> bytes:
        """The content of one of these files."""
        path = f"/v1/experiments/{experiment_id}/artifacts/{name}"
        response = self._send(lambda: self._http.get(path), idempotent=True)
        if response.is_error:
            raise Refused(_document(response))
        return response.content

    def preset(self, name: str) -> Json:
        """One of the paper's tables and figures: its specs, and what was published."""
        return self._call("GET", f"/v1/presets/{name}")

    def verdict(self, name: str, experiment_ids: list[str]) -> Json:
        """Whether experiments that ran a preset's specs, in order, agree with the paper."""
        query = {"experiment": experiment_ids}
        return self._call("GET", f"/v1/presets/{name}/verdict", params=query)

    def is_ready(self) -> bool:
        """Whether the service answers."""
        try:
            return self._http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def _once(self, path: str, body: Json | None, idempotency_key: str | None) -> Json:
        """Send what is to be done once however often it is sent."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._call("POST", path, headers=headers, json=body)

    def _call(self, method: str, path: str, *, idempotent: bool = False, **options: Any) -> Json:
        again = idempotent or method == "GET" or "Idempotency-Key" in options.get("headers", ())
        send = partial(self._http.request, method, path, **options)
        return _answer(self._send(send, idempotent=again))

    def _send(
        self, send: Callable[[], httpx.Response], *, idempotent: bool, for_s: float | None = None
    ) -> httpx.Response:
        """Send, and send again for so many seconds; by default as many as the client has."""
        return send_again(
            send,
            idempotent=idempotent,
            for_s=retry_s() if for_s is None else for_s,
            on_outage=self._tell,
        )

    def _tell(self, cause: str) -> None:
        self._on_outage(f"{self.url} does not answer ({cause}): trying again")


def _answer(response: httpx.Response) -> Json:
    if response.is_error:
        raise Refused(_document(response))
    answer: Json = response.json() if response.content else {}
    return answer


def store() -> Path:
    """Where the embedded service keeps everything: MPT_STORE, or the user's data directory."""
    given = os.environ.get("MPT_STORE")
    return Path(given) if given else user_data_path("mptlab")


def _local_key() -> str:
    key_file = store() / "api-key"
    try:
        return key_file.read_text().strip()
    except FileNotFoundError:
        detail = f"no API key: set MPT_API_KEY, or start `mpt serve`, which writes {key_file}"
        raise Refused({"detail": detail}) from None


def _document(response: httpx.Response) -> Json:
    try:
        document = response.json()
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"detail": f"HTTP {response.status_code}"}

"""Follow the service's event streams."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import httpx
from httpx_sse import EventSource, SSEError

from mptlab.connection import checked
from mptlab.errors import Json, Refused

if TYPE_CHECKING:
    from mptlab.client import Client

SILENT_S = 60.0
"""Seconds without data after which a stream is broken; the service sends a line every 15 s."""
PAUSE_S = 0.5
"""Seconds to wait before a broken stream is opened again."""


def follow(
    client: "Client", path: str, after: str | None = None, kind: Sequence[str] = ()
) -> Iterator[Json]:
    """Yield the events of an experiment, each once and in order, until no more can come. `after` is
    the `id` of an event, or "now". `kind` is status, log, progress or points; by default all. A
    broken stream is opened again at the same position, however long the service is unreachable.
    Raises Refused, and NoAnswer if the service does not answer at first."""
    if after == "now":  # a reconnect must not start from a new "now"
        page = client._call("GET", path, params={"after": after})
        after = page["last_id"]
    for_s: float | None = None
    while True:
        ask = partial(_opened, client._http, path, {"after": after, "kind": [*kind]})
        response = client._send(ask, idempotent=True, for_s=for_s)
        try:
            for sent in EventSource(checked(response)).iter_sse():
                if sent.event == "end":
                    _check_end(json.loads(sent.data))
                    return
                if not sent.data:  # httpx-sse yields an event at the end of a comment
                    continue
                after = sent.id or after
                event: Json = json.loads(sent.data)
                yield event
        except SSEError as error:
            raise Refused({"detail": f"cannot read events from {response.url}: {error}"}) from None
        except httpx.TransportError:
            pass
        finally:
            response.close()
        for_s = math.inf
        time.sleep(PAUSE_S)


def follow_several(client: "Client", path: str, kind: Sequence[str] = ()) -> Iterator[Json]:
    """Yield the events of several experiments, until no more can come. The service begins each
    stream with the present status of the experiments, so that no end is lost while the service was
    unreachable. A status that an experiment is known to have is not yielded again. Raises as
    `follow`."""
    statuses: dict[str, str] = {}
    for event in follow(client, path, kind=kind):
        if event["kind"] == "status":
            experiment_id, status = event["experiment_id"], event["data"]["status"]
            if statuses.get(experiment_id) == status:
                continue
            statuses[experiment_id] = status
        yield event


def _opened(http: httpx.Client, path: str, query: Json) -> httpx.Response:
    patience = httpx.Timeout(http.timeout.connect, read=SILENT_S)
    params = {name: value for name, value in query.items() if value}
    request = http.build_request("GET", path, params=params, timeout=patience,
                                 headers={"Accept": "text/event-stream"})  # fmt: skip
    response = http.send(request, stream=True)
    if not response.is_success:
        response.read()
    return response


def _check_end(end: Json) -> None:
    if end["reason"] != "ended":
        raise Refused({"detail": "this key may no longer read these events", **end})

"""Submitting experiments, waiting for them, reading what came out."""

import asyncio
import hashlib
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from mptlab import tables
from mptlab._async.administration import AsyncAdministration
from mptlab._async.events import follow
from mptlab._async.experiments import AsyncExperiment, AsyncExperiments, Id, id_of
from mptlab._async.sweeps import AsyncSweep, points_of
from mptlab.answers import checked
from mptlab.bodies import async_content
from mptlab.curves import Curves
from mptlab.errors import Json, Refused
from mptlab.optional import needed
from mptlab.places import store
from mptlab.specs import is_file, read_spec

__all__ = ["AsyncClient", "Refused", "store"]

UPLOAD_S = 600.0
"""How long the service may look at an upload before it answers."""

MOST_AT_ONCE = 1000
"""Experiments whose curves are asked for together."""

WAITS_AT_FULL_PACE = 10
"""More of them together look no more often than these do."""

MOST_WITH_SPECS = 50
"""Experiments that are asked for together with their specs."""

Spec = Any
"""A mapping, a pydantic model, the path of a JSON or YAML file, or the name of a preset."""


class AsyncClient(AsyncAdministration):
    """The service, by a URL and a key: see AsyncConnection for where these come from.

    `experiments` holds objects to work with; the methods here take ids, and give the service's
    documents as they come.
    """

    @cached_property
    def experiments(self) -> AsyncExperiments:
        """Your experiments: `create`, `get`, `list`, `wait`. Called, it goes over all of them."""
        return AsyncExperiments(self)

    async def submit(
        self, spec: Spec, *, idempotency_key: str | None = None, **beside: Any
    ) -> Json:
        """Queue an experiment; `beside` is name, tags, note, priority, visibility, after, cache.
        Where one had computed the same, this is that one, and has `cached_from`. What is sent again
        under the same idempotency key, by default one of this call's own, is queued once.
        Raises Refused."""
        body = {"spec": await self._spec(spec), **beside}
        return await self._once("/v1/experiments", body, idempotency_key)

    async def batch(
        self, submissions: Iterable[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[str]:
        """Queue many experiments, all or none: each a mapping with `spec` and what stands beside
        it. Their ids, in order; those of before where one had computed the same. Raises Refused."""
        body = {"experiments": list(submissions)}
        answer = await self._once("/v1/experiments:batch", body, idempotency_key)
        return [one["id"] for one in answer["items"]]

    async def sweep(
        self,
        spec: Spec,
        grid: Mapping[str, Iterable[Any]] | None = None,
        *,
        idempotency_key: str | None = None,
        **beside: Any,
    ) -> AsyncSweep:
        """Queue an experiment for each combination of values of some fields, by their dotted paths:
        `client.sweep(spec, {"model.latent_dim": range(1, 13)})`. In place of a grid, `list=[…]`
        gives the points, or `random={…}` draws them; `beside` is also name, tags, note, priority,
        visibility, concurrency, after, cache. Raises Refused."""
        points = points_of(grid) if grid is not None else {}
        body = {"spec": await self._spec(spec), **points, **beside}
        made = await self._once("/v1/sweeps", body, idempotency_key)
        return AsyncSweep(self, made["id"])

    async def get_sweep(self, sweep_id: str) -> AsyncSweep:
        """A sweep of before. Raises Refused."""
        found = await self._call("GET", f"/v1/sweeps/{quote(sweep_id, safe='')}")
        return AsyncSweep(self, found["id"])

    def sweeps(self, **filters: Any) -> AsyncIterator[Json]:
        """Your sweeps, newest first; `whose="lab"` lists what is shared."""
        return self._pages("/v1/sweeps", filters)

    async def upload(self, file: str | os.PathLike[str]) -> Json:
        """Upload a data set, of numbers or of text; its id goes into a spec. The same bytes are one
        data set however often they are sent. Raises Refused."""
        path = Path(file)
        patience = httpx.Timeout(self._http.timeout.connect, read=UPLOAD_S)

        async def send() -> httpx.Response:
            with path.open("rb") as file:
                return await self._http.post(
                    "/v1/datasets",
                    params={"name": path.name},
                    content=async_content(file),
                    timeout=patience,
                )

        answer: Json = checked(await self._send(send, idempotent=True)).json()
        return answer

    def datasets(self, **filters: Any) -> AsyncIterator[Json]:
        """Your uploads, newest first."""
        return self._pages("/v1/datasets", filters)

    async def validate(self, spec: Spec) -> Json:
        """The resolved spec, how long it would run, what memory it would take, where it would stand
        in the queue, and whether it was computed before. Raises Refused."""
        body = {"spec": await self._spec(spec)}
        return await self._call("POST", "/v1/experiments:validate", idempotent=True, json=body)

    async def get(self, experiment_id: Id) -> Json:
        """Where an experiment stands, with its metrics so far."""
        return await self._call("GET", _path(experiment_id))

    async def get_many(self, experiment_ids: Iterable[Id]) -> list[Json]:
        """Where many experiments stand, in their order, with their specs and metrics so far. Raises
        Refused where one is not there."""
        wanted = [id_of(one) for one in experiment_ids]
        ids = [*dict.fromkeys(wanted)]
        found: Json = {}
        for first in range(0, len(ids), MOST_WITH_SPECS):
            body = {"ids": ids[first : first + MOST_WITH_SPECS]}
            path = "/v1/experiments:batchGet"
            answer = await self._call("POST", path, idempotent=True, json=body)
            found |= {one["id"]: one for one in answer["items"]}
        return [found[one] for one in wanted]

    async def cancel(self, experiment_id: Id) -> Json:
        """Ask for an experiment to end."""
        return await self._call("POST", f"{_path(experiment_id)}:cancel", idempotent=True)

    async def cancel_matching(self, **filters: Any) -> Json:
        """Cancel all your experiments that match the filters of a list, which are at least one; an
        admin's `whose="all", owner="ann"` cancels those of another user. Return how many waited and
        are `cancelled`, and how many run and are `ending`."""
        path = f"/v1/experiments:cancel?{httpx.QueryParams(filters)}"
        counts = {"cancelled": 0, "ending": 0}
        more = True
        while more:
            answer = await self._call("POST", path, idempotent=True)
            counts = {name: count + answer[name] for name, count in counts.items()}
            more = answer["more"]
        return counts

    async def pause(self, experiment_id: Id) -> Json:
        """Ask for an experiment to be set aside."""
        return await self._call("POST", f"{_path(experiment_id)}:pause", idempotent=True)

    async def resume(self, experiment_id: Id) -> Json:
        """Put a paused experiment back in the queue."""
        return await self._call("POST", f"{_path(experiment_id)}:resume")

    async def retry(self, experiment_id: Id, *, idempotency_key: str | None = None) -> Json:
        """Queue a new experiment like one that failed or was cancelled; the key as in `submit`."""
        return await self._once(f"{_path(experiment_id)}:retry", None, idempotency_key)

    async def change(self, experiment_id: Id, **changes: Any) -> Json:
        """Change what stands beside the spec: name, tags, note, priority, visibility ("private" or
        "lab"), pinned."""
        return await self._call("PATCH", _path(experiment_id), json=changes)

    async def delete(self, experiment_id: Id) -> None:
        """Delete an experiment that does not run; `undelete` brings it back for some days."""
        await self._call("DELETE", _path(experiment_id))

    async def undelete(self, experiment_id: Id) -> Json:
        """Bring back an experiment that was deleted, while its files are kept. Raises Refused."""
        path = f"{_path(experiment_id)}:undelete"
        return await self._call("POST", path, idempotent=True)

    async def me(self) -> Json:
        """Whose key this is, and what it allows."""
        return await self._call("GET", "/v1/me")

    async def sign_in_url(self) -> str:
        """A page that signs one browser in with this key, once, within ten minutes."""
        made = await self._call("POST", "/v1/sign-in-codes")
        return f"{self.url}{made['path']}"

    async def wait(
        self,
        experiment_id: Id,
        timeout_s: float | None = None,
        on_change: Callable[[Json], object] = lambda experiment: None,
        poll_s: float = 0.2,
    ) -> Json:
        """Wait until an experiment has ended, and return it, however it did: `experiments.wait`
        raises where it failed. `on_change` sees it at every look. Once the service has answered, an
        outage is waited for as well. Where one client waits for many at once, it looks at each less
        often. Raises TimeoutError."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._one_more_wait():
            experiment = await self.get(experiment_id)
            while True:
                on_change(experiment)
                if experiment["terminal"]:
                    return experiment
                if time.monotonic() > deadline:
                    name, status = id_of(experiment_id), experiment["status"]
                    raise TimeoutError(f"{name} is {status} after {timeout_s} s")
                pause_s = poll_s * max(1.0, self._waits / WAITS_AT_FULL_PACE)
                await asyncio.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
                experiment = await self._look(_path(experiment_id), deadline)

    async def curves(
        self,
        experiment_id: Id,
        series: str | None = None,
        max_points: int = 100_000,
        **labels: Any,
    ) -> Curves:
        """The series of an experiment by column: all, or those of one name and with the given
        labels."""
        path = f"{_path(experiment_id)}/curves" + (f"/{quote(series, safe='')}" if series else "")
        answer = await self._call("GET", path, params={"max_points": max_points, **labels})
        return Curves(answer["series"])

    async def curves_of(
        self,
        experiment_ids: Iterable[Id],
        series: Sequence[str] | None = None,
        max_points: int = 100_000,
        **labels: Any,
    ) -> list[Json]:
        """The curves of many experiments, in their order, each with its `series` by column: all, or
        those of some names and with the given labels, a value or a list of values each. Of every
        thousand experiments, at most `max_points` points. Raises Refused."""
        ids = [id_of(one) for one in experiment_ids]
        found: list[Json] = []
        for first in range(0, len(ids), MOST_AT_ONCE):
            body = {"ids": ids[first : first + MOST_AT_ONCE], "series": series, "labels": labels,
                    "max_points": max_points}  # fmt: skip
            answer = await self._call("POST", "/v1/curves:batchGet", idempotent=True, json=body)
            found += answer["items"]
        return found

    def events(self, *, after: str | None = None, kind: Sequence[str] = ()) -> AsyncIterator[Json]:
        """What happens to any of your experiments, on and on: see `mptlab.events.follow`."""
        return follow(self, "/v1/events", after, kind)

    def events_of(
        self, experiment_id: Id, *, after: str | None = None, kind: Sequence[str] = ()
    ) -> AsyncIterator[Json]:
        """What happens to an experiment, its points among it, until it has ended."""
        return follow(self, f"{_path(experiment_id)}/events", after, kind)

    async def logs(self, experiment_id: Id, level: str | None = None) -> AsyncIterator[Json]:
        """The lines of an experiment's log so far, or those of a level: `at`, `level`, `message`,
        and `seq`."""
        query: Json = {"level": level} if level else {}
        more = True
        while more:
            page = await self._call("GET", f"{_path(experiment_id)}/logs", params=query)
            for line in page["items"]:
                yield line
            query["after"], more = page["last_seq"], page["more"]

    async def artifacts(self, experiment_id: Id) -> list[Json]:
        """The files that an experiment left: weights, pictures."""
        return await self._items(f"{_path(experiment_id)}/artifacts")

    async def artifact(self, experiment_id: Id, name: str) -> bytes:
        """The content of one of these files."""
        return await self._content(f"{_path(experiment_id)}/artifacts/{quote(name, safe='')}")

    async def download(
        self, experiment_id: Id, folder: str | os.PathLike[str] = ".", *names: str
    ) -> list[Path]:
        """Write all files that an experiment left, or those of some names, into a folder; what was
        not received whole is not written. Raises Refused, and ValueError for a name that is not
        there."""
        left = {one["name"]: one for one in await self.artifacts(experiment_id)}
        if missing := [name for name in names if name not in left]:
            there = ", ".join(left) or "no files"
            raise ValueError(f"{missing[0]} is not there: the experiment left {there}")
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [
            await self._download(experiment_id, left[name], Path(folder)) for name in names or left
        ]

    async def bundle(self, experiment_id: Id, file: str | os.PathLike[str]) -> Path:
        """Write the zip of all that there is of an experiment that has ended: its spec, records,
        curves, metrics, files, and how to compute it again. Raises Refused."""
        content = await self._content(f"{_path(experiment_id)}/bundle")
        await asyncio.to_thread(Path(file).write_bytes, content)
        return Path(file)

    async def _download(self, experiment_id: Id, artifact: Json, folder: Path) -> Path:
        content = await self.artifact(experiment_id, artifact["name"])
        if hashlib.sha256(content).hexdigest() != artifact["sha256"]:
            raise ValueError(f"{artifact['name']} came damaged: ask for it again")
        file = folder / Path(artifact["name"]).name
        await asyncio.to_thread(file.write_bytes, content)
        return file

    async def compare(self, experiment_ids: Iterable[Id]) -> Any:
        """A pandas DataFrame with a row for each experiment: name, status, the fields in which
        their specs differ, and their metrics, over seeds where they have several."""
        documents = await self.get_many(experiment_ids)
        return needed("pandas", "frames").DataFrame(tables.comparison(documents)).set_index("id")

    async def presets(self) -> list[Json]:
        """The paper's tables and figures: their specs, and what was published."""
        return await self._items("/v1/presets")

    async def preset(self, name: str) -> Json:
        """One of the paper's tables and figures: its specs, and what was published."""
        return await self._call("GET", f"/v1/presets/{quote(name, safe='')}")

    async def run_preset(
        self, name: str, *, idempotency_key: str | None = None, **beside: Any
    ) -> list[AsyncExperiment]:
        """Queue an experiment for each of a preset's specs, all or none, tagged as the dashboard's
        Paper page does; their ids, in order, are what `verdict` takes."""
        tags = [*beside.get("tags", ()), f"preset:{name}"]
        submissions = [
            {"spec": spec, "name": name, **beside, "tags": [*tags, f"part:{part}"]}
            for part, spec in enumerate(await self._specs_of(name), 1)
        ]
        ids = await self.batch(submissions, idempotency_key=idempotency_key)
        return [await self.experiments.get(one) for one in ids]

    async def verdict(self, name: str, experiment_ids: Iterable[Id]) -> Json:
        """Whether experiments that ran a preset's specs, in order, agree with the paper."""
        query = {"experiment": [id_of(one) for one in experiment_ids]}
        path = f"/v1/presets/{quote(name, safe='')}/verdict"
        return await self._call("GET", path, params=query)

    async def _spec(self, given: Spec) -> Any:
        """What a request says as the spec. Raises ValueError, OSError, Refused."""
        if is_file(given):
            return read_spec(given)
        if not isinstance(given, str):
            return given
        specs = await self._specs_of(given)
        if len(specs) > 1:
            told = f"the preset {given} has {len(specs)} specs: client.run_preset({given!r})"
            raise ValueError(f"{told} queues them all")
        return specs[0]

    async def _specs_of(self, preset: str) -> list[Json]:
        found = await self.preset(preset)
        specs: list[Json] = found["specs"]
        return specs


def _path(experiment_id: Id) -> str:
    return f"/v1/experiments/{quote(id_of(experiment_id), safe='')}"

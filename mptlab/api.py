"""Submitting experiments, waiting for them, reading what came out."""

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from mptlab import tables
from mptlab.administration import Administration
from mptlab.answers import checked
from mptlab.curves import Curves
from mptlab.errors import Json, Refused
from mptlab.events import follow
from mptlab.experiments import Experiment, Experiments, Id, id_of
from mptlab.optional import needed
from mptlab.places import store
from mptlab.specs import is_file, read_spec
from mptlab.sweeps import Sweep, points_of

__all__ = ["Client", "Refused", "store"]

UPLOAD_S = 600.0
"""Seconds that the service may inspect an upload before it answers."""

MAX_AT_ONCE = 1000
"""Experiments whose curves are asked for together."""

WAITS_AT_FULL_PACE = 10
"""More of them together look no more often than these do."""

MAX_WITH_SPECS = 50
"""Experiments that are asked for together with their specs."""

Spec = Any
"""A mapping, a pydantic model, the path of a JSON or YAML file, or the name of a preset."""


class Client(Administration):
    """The service, by a URL and a key: see Connection for where these come from.

    `experiments` holds objects to work with; the methods here take ids, and give the service's
    documents as they come.
    """

    @cached_property
    def experiments(self) -> Experiments:
        """Your experiments: `create`, `get`, `list`, `wait`. Called, it goes over all of them."""
        return Experiments(self)

    def submit(self, spec: Spec, *, idempotency_key: str | None = None, **beside: Any) -> Json:
        """Queue an experiment; `beside` is name, tags, note, priority, visibility, after, cache.
        Where one had computed the same, this is that one, and has `cached_from`. What is sent again
        under the same idempotency key, by default one of this call's own, is queued once.
        Raises Refused."""
        body = {"spec": self._spec(spec), **beside}
        return self._once("/v1/experiments", body, idempotency_key)

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
        spec: Spec,
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
        body = {"spec": self._spec(spec), **points, **beside}
        made = self._once("/v1/sweeps", body, idempotency_key)
        return Sweep(self, made["id"])

    def get_sweep(self, sweep_id: str) -> Sweep:
        """A sweep of before. Raises Refused."""
        found = self._call("GET", f"/v1/sweeps/{quote(sweep_id, safe='')}")
        return Sweep(self, found["id"])

    def sweeps(self, **filters: Any) -> Iterator[Json]:
        """Your sweeps, newest first; `whose="lab"` lists what is shared."""
        return self._pages("/v1/sweeps", filters)

    def upload(self, file: str | os.PathLike[str]) -> Json:
        """Upload a data set, of numbers or of text; its id goes into a spec. The same bytes are one
        data set however often they are sent. Raises Refused."""
        path = Path(file)
        patience = httpx.Timeout(self._http.timeout.connect, read=UPLOAD_S)

        def send() -> httpx.Response:
            with path.open("rb") as file:
                return self._http.post(
                    "/v1/datasets",
                    params={"name": path.name},
                    content=file,
                    timeout=patience,
                )

        answer: Json = checked(self._send(send, idempotent=True)).json()
        return answer

    def datasets(self, **filters: Any) -> Iterator[Json]:
        """Your uploads, newest first."""
        return self._pages("/v1/datasets", filters)

    def validate(self, spec: Spec) -> Json:
        """The resolved spec, how long it would run, what memory it would take, where it would stand
        in the queue, and whether it was computed before. Raises Refused."""
        body = {"spec": self._spec(spec)}
        return self._call("POST", "/v1/experiments:validate", idempotent=True, json=body)

    def get(self, experiment_id: Id) -> Json:
        """Where an experiment stands, with its metrics so far."""
        return self._call("GET", _path(experiment_id))

    def get_many(self, experiment_ids: Iterable[Id]) -> list[Json]:
        """Where many experiments stand, in their order, with their specs and metrics so far. Raises
        Refused where one is not there."""
        wanted = [id_of(one) for one in experiment_ids]
        ids = [*dict.fromkeys(wanted)]
        found: Json = {}
        for first in range(0, len(ids), MAX_WITH_SPECS):
            body = {"ids": ids[first : first + MAX_WITH_SPECS]}
            path = "/v1/experiments:batchGet"
            answer = self._call("POST", path, idempotent=True, json=body)
            found |= {one["id"]: one for one in answer["items"]}
        return [found[one] for one in wanted]

    def cancel(self, experiment_id: Id) -> Json:
        """Ask for an experiment to end."""
        return self._call("POST", f"{_path(experiment_id)}:cancel", idempotent=True)

    def cancel_matching(self, **filters: Any) -> Json:
        """Cancel all your experiments that match the filters of a list, which are at least one; an
        admin's `whose="all", owner="ann"` cancels those of another user. Return how many waited and
        are `cancelled`, and how many run and are `ending`."""
        path = f"/v1/experiments:cancel?{httpx.QueryParams(filters)}"
        counts = {"cancelled": 0, "ending": 0}
        more = True
        while more:
            answer = self._call("POST", path, idempotent=True)
            counts = {name: count + answer[name] for name, count in counts.items()}
            more = answer["more"]
        return counts

    def pause(self, experiment_id: Id) -> Json:
        """Ask for an experiment to be set aside."""
        return self._call("POST", f"{_path(experiment_id)}:pause", idempotent=True)

    def resume(self, experiment_id: Id) -> Json:
        """Put a paused experiment back in the queue."""
        return self._call("POST", f"{_path(experiment_id)}:resume")

    def retry(self, experiment_id: Id, *, idempotency_key: str | None = None) -> Json:
        """Queue a new experiment like one that failed or was cancelled; the key as in `submit`."""
        return self._once(f"{_path(experiment_id)}:retry", None, idempotency_key)

    def change(self, experiment_id: Id, **changes: Any) -> Json:
        """Change what stands beside the spec: name, tags, note, priority, visibility ("private" or
        "lab"), pinned."""
        return self._call("PATCH", _path(experiment_id), json=changes)

    def delete(self, experiment_id: Id) -> None:
        """Delete an experiment that does not run; `undelete` brings it back for some days."""
        self._call("DELETE", _path(experiment_id))

    def undelete(self, experiment_id: Id) -> Json:
        """Bring back an experiment that was deleted, while its files are kept. Raises Refused."""
        path = f"{_path(experiment_id)}:undelete"
        return self._call("POST", path, idempotent=True)

    def me(self) -> Json:
        """Whose key this is, and what it allows."""
        return self._call("GET", "/v1/me")

    def sign_in_url(self) -> str:
        """A page that signs one browser in with this key, once, within ten minutes."""
        made = self._call("POST", "/v1/sign-in-codes")
        return f"{self.url}{made['path']}"

    def wait(
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
            experiment = self.get(experiment_id)
            while True:
                on_change(experiment)
                if experiment["terminal"]:
                    return experiment
                if time.monotonic() > deadline:
                    name, status = id_of(experiment_id), experiment["status"]
                    raise TimeoutError(f"{name} is {status} after {timeout_s} s")
                pause_s = poll_s * max(1.0, self._waits / WAITS_AT_FULL_PACE)
                time.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
                experiment = self._look(_path(experiment_id), deadline)

    def curves(
        self,
        experiment_id: Id,
        series: str | None = None,
        max_points: int = 100_000,
        **labels: Any,
    ) -> Curves:
        """The series of an experiment by column: all, or those of one name and with the given
        labels."""
        path = f"{_path(experiment_id)}/curves" + (f"/{quote(series, safe='')}" if series else "")
        answer = self._call("GET", path, params={"max_points": max_points, **labels})
        return Curves(answer["series"])

    def curves_of(
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
        for first in range(0, len(ids), MAX_AT_ONCE):
            body = {"ids": ids[first : first + MAX_AT_ONCE], "series": series, "labels": labels,
                    "max_points": max_points}  # fmt: skip
            answer = self._call("POST", "/v1/curves:batchGet", idempotent=True, json=body)
            found += answer["items"]
        return found

    def events(self, *, after: str | None = None, kind: Sequence[str] = ()) -> Iterator[Json]:
        """Yield the events of all your experiments, without end: see `mptlab.events.follow`."""
        return follow(self, "/v1/events", after, kind)

    def events_of(
        self, experiment_id: Id, *, after: str | None = None, kind: Sequence[str] = ()
    ) -> Iterator[Json]:
        """Yield the events of an experiment, with its points, until it has ended."""
        return follow(self, f"{_path(experiment_id)}/events", after, kind)

    def logs(self, experiment_id: Id, level: str | None = None) -> Iterator[Json]:
        """The lines of an experiment's log so far, or those of a level: `at`, `level`, `message`,
        and `seq`."""
        query: Json = {"level": level} if level else {}
        more = True
        while more:
            page = self._call("GET", f"{_path(experiment_id)}/logs", params=query)
            yield from page["items"]
            query["after"], more = page["last_seq"], page["more"]

    def artifacts(self, experiment_id: Id) -> list[Json]:
        """The files that an experiment left: weights, pictures."""
        return self._items(f"{_path(experiment_id)}/artifacts")

    def artifact(self, experiment_id: Id, name: str) -> bytes:
        """The content of one of these files."""
        return self._content(f"{_path(experiment_id)}/artifacts/{quote(name, safe='')}")

    def download(
        self, experiment_id: Id, folder: str | os.PathLike[str] = ".", *names: str
    ) -> list[Path]:
        """Write all files that an experiment left, or those of some names, into a folder; what was
        not received whole is not written. Raises Refused, and ValueError for a name that is not
        there."""
        left = {one["name"]: one for one in self.artifacts(experiment_id)}
        if missing := [name for name in names if name not in left]:
            there = ", ".join(left) or "no files"
            raise ValueError(f"{missing[0]} is not there: the experiment left {there}")
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [self._download(experiment_id, left[name], Path(folder)) for name in names or left]

    def bundle(self, experiment_id: Id, file: str | os.PathLike[str]) -> Path:
        """Write the zip of all that there is of an experiment that has ended: its spec, records,
        curves, metrics, files, and how to compute it again. Raises Refused."""
        content = self._content(f"{_path(experiment_id)}/bundle")
        Path(file).write_bytes(content)
        return Path(file)

    def _download(self, experiment_id: Id, artifact: Json, folder: Path) -> Path:
        content = self.artifact(experiment_id, artifact["name"])
        if hashlib.sha256(content).hexdigest() != artifact["sha256"]:
            raise ValueError(f"{artifact['name']} came damaged: ask for it again")
        file = folder / Path(artifact["name"]).name
        file.write_bytes(content)
        return file

    def compare(self, experiment_ids: Iterable[Id]) -> Any:
        """A pandas DataFrame with a row for each experiment: name, status, the fields in which
        their specs differ, and their metrics, over seeds where they have several."""
        documents = self.get_many(experiment_ids)
        return needed("pandas", "frames").DataFrame(tables.comparison(documents)).set_index("id")

    def presets(self) -> list[Json]:
        """The paper's tables and figures: their specs, and what was published."""
        return self._items("/v1/presets")

    def preset(self, name: str) -> Json:
        """One of the paper's tables and figures: its specs, and what was published."""
        return self._call("GET", f"/v1/presets/{quote(name, safe='')}")

    def run_preset(
        self, name: str, *, idempotency_key: str | None = None, **beside: Any
    ) -> list[Experiment]:
        """Queue an experiment for each of a preset's specs, all or none, tagged as the dashboard's
        Paper page does; their ids, in order, are what `verdict` takes."""
        tags = [*beside.get("tags", ()), f"preset:{name}"]
        submissions = [
            {"spec": spec, "name": name, **beside, "tags": [*tags, f"part:{part}"]}
            for part, spec in enumerate(self._specs_of(name), 1)
        ]
        ids = self.batch(submissions, idempotency_key=idempotency_key)
        return [self.experiments.get(one) for one in ids]

    def verdict(self, name: str, experiment_ids: Iterable[Id]) -> Json:
        """Return whether experiments that ran a preset's specs, in order, agree with the paper."""
        query = {"experiment": [id_of(one) for one in experiment_ids]}
        path = f"/v1/presets/{quote(name, safe='')}/verdict"
        return self._call("GET", path, params=query)

    def _spec(self, given: Spec) -> Any:
        """Return the spec as it is sent in a request. Raises ValueError, OSError, Refused."""
        if is_file(given):
            return read_spec(given)
        if not isinstance(given, str):
            return given
        specs = self._specs_of(given)
        if len(specs) > 1:
            told = f"the preset {given} has {len(specs)} specs: client.run_preset({given!r})"
            raise ValueError(f"{told} queues them all")
        return specs[0]

    def _specs_of(self, preset: str) -> list[Json]:
        found = self.preset(preset)
        specs: list[Json] = found["specs"]
        return specs


def _path(experiment_id: Id) -> str:
    return f"/v1/experiments/{quote(id_of(experiment_id), safe='')}"

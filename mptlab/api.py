"""Submit experiments, wait for them, and read their results."""

import csv
import hashlib
import io
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import httpx

from mptlab import tables
from mptlab.administration import Administration
from mptlab.connection import checked
from mptlab.curves import Curves, needed
from mptlab.errors import Json, Refused
from mptlab.events import follow, follow_several
from mptlab.experiments import Experiment, Experiments, Id, id_of
from mptlab.places import store
from mptlab.specs import is_file, kind_of_data, names_of_parts, read_spec
from mptlab.sweeps import Sweep, points_of
from mptlab.text_tables import texts_of
from mptlab.texts import Texts, score_spec
from mptlab.uploads import print_reading, send_file, with_uploads

__all__ = ["Client", "Refused", "store"]

MAX_AT_ONCE = 1000
"""Maximum number of experiments in one request for curves."""

ROWS = "rows.csv"
"""File with the score of each row."""
ROW_TYPES: Mapping[str, Callable[[str], Any]] = {
    "row": int,
    "seed": int,
    "values": int,
    "log_likelihood": float,
    "p_value": float,
}
"""Types of its columns that are not text."""
IN_A_SPEC = {
    "numbers": "a spec names its file in data, and the client uploads it: "
    '{{"model": {{"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}}, '
    '"data": {{"source": "upload", "dataset": "{file}", "heldout": 0.2}}}}',
    "texts": "a spec names its file in data, and the client uploads it: "
    '{{"model": {{"family": "masked_lm", "checkpoint": "NAME"}}, '
    '"data": {{"source": "text", "dataset": "{file}"}}}}; client.score scores each text',
    "spreadsheet": "save it as .csv, which a spec can use",
}
"""Uses of data in a spec, by the kind of the data."""
MAX_TEXTS = 10_000
"""Maximum number of rows in one request for texts."""

WAITS_AT_FULL_PACE = 10
"""Number of concurrent waits that poll at full rate; with more, each wait polls less often."""

MAX_WITH_SPECS = 50
"""Maximum number of experiments in one request that returns specs."""

Spec = Any
"""A mapping, a pydantic model, the path of a JSON or YAML file, or the name of a preset."""


class Client(Administration):
    """Client of the service. `Connection` explains where the URL and the key come from.

    `experiments` returns `Experiment` objects. The methods of this class use ids and return the
    service's JSON documents unchanged."""

    on_upload: Callable[[str, Json], object] = staticmethod(print_reading)
    """Called with the name of each uploaded file and its data set. By default it prints what was
    read of the file on standard error."""

    @cached_property
    def experiments(self) -> Experiments:
        """Your experiments: `create`, `get`, `list`, `wait`. Call it to iterate over all of
        them."""
        return Experiments(self)

    def submit(self, spec: Spec, *, idempotency_key: str | None = None, **beside: Any) -> Json:
        """Queue an experiment. `beside` may have name, tags, note, priority, visibility, after,
        cache. If the same experiment was computed before, return that experiment, with
        `cached_from`. Requests with the same idempotency key are queued once; by default each call
        makes its own key. Raises Refused."""
        body = {"spec": self._spec(spec), **beside}
        return self._once("/v1/experiments", body, idempotency_key)

    def batch(
        self, submissions: Iterable[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[str]:
        """Queue many experiments, all or none. Each is a mapping with `spec` and the other fields
        of `submit`. Return their ids in order; an experiment that was computed before keeps its old
        id. Raises Refused."""
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
        """Queue an experiment for each combination of values of some fields, given by dotted path:
        `client.sweep(spec, {"model.latent_dim": range(1, 13)})`. Instead of a grid, `list=[…]`
        gives the points, or `random={…}` draws them. `beside` may also have name, tags, note,
        priority, visibility, concurrency, after, cache. Raises Refused."""
        points = points_of(grid) if grid is not None else {}
        body = {"spec": self._spec(spec), **points, **beside}
        made = self._once("/v1/sweeps", body, idempotency_key)
        return Sweep(self, made["id"])

    def get_sweep(self, sweep_id: str) -> Sweep:
        """Return an existing sweep. Raises Refused."""
        found = self._call("GET", f"/v1/sweeps/{quote(sweep_id, safe='')}")
        return Sweep(self, found["id"])

    def sweeps(self, **filters: Any) -> Iterator[Json]:
        """Yield your sweeps, newest first; `whose="lab"` lists shared sweeps."""
        return self._pages("/v1/sweeps", filters)

    def upload(
        self,
        file: str | os.PathLike[str],
        *,
        header: bool | None = None,
        sep: str | None = None,
        decimal: str | None = None,
        thousands: str | None = None,
        index: str | Sequence[str] = (),
        drop_non_numeric: bool = False,
    ) -> Json:
        """Upload a data set of numbers or text and return it; use its id or file name in a spec.
        Its `summary` and `warnings` state what was read. Uploading the same bytes with the same
        options again returns the same data set.

        `index` names columns of a table that identify the rows, `drop_non_numeric` leaves out all
        columns that are not numbers. `header` says whether the first line of a text file has the
        names of the columns; `sep`, `decimal` and `thousands` are its separators. Raises Refused,
        OSError."""
        given = {
            "header": header,
            "sep": "tab" if sep == "\t" else sep,
            "decimal": decimal,
            "thousands": thousands,
            "index": [index] if isinstance(index, str) else [*index],
            "drop_non_numeric": drop_non_numeric or None,
        }
        options = {name: value for name, value in given.items() if value is not None}
        answer = self._upload(Path(file), options)
        self.on_upload(Path(file).name, answer)
        return answer

    def _upload(self, file: Path, options: Mapping[str, Any] = MappingProxyType({})) -> Json:
        send = partial(send_file, self._http, file, options)
        answer: Json = checked(self._send(send, idempotent=True)).json()
        return answer

    def datasets(self, **filters: Any) -> Iterator[Json]:
        """Yield your uploads, newest first."""
        return self._pages("/v1/datasets", filters)

    def dataset(self, dataset_id: str) -> Json:
        """Return an upload: its name, columns and sizes. Raises Refused."""
        return self._call("GET", f"/v1/datasets/{quote(dataset_id, safe='')}")

    def validate(self, spec: Spec) -> Json:
        """Return the resolved spec, its estimated run time and memory, its position in the queue if
        it were submitted, and whether it was computed before. Raises Refused."""
        body = {"spec": self._spec(spec)}
        return self._call("POST", "/v1/experiments:validate", idempotent=True, json=body)

    def get(self, experiment_id: Id) -> Json:
        """Return an experiment's status and its metrics so far."""
        return self._call("GET", _path(experiment_id))

    def get_many(self, experiment_ids: Iterable[Id]) -> list[Json]:
        """Return many experiments in the given order, with their specs and their metrics so far.
        Raises Refused if an experiment does not exist."""
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
        """Request the cancellation of an experiment."""
        return self._call("POST", f"{_path(experiment_id)}:cancel", idempotent=True)

    def cancel_matching(self, **filters: Any) -> Json:
        """Cancel all your experiments that match the filters; at least one filter is required. An
        admin can cancel another user's with `whose="all", owner="ann"`. Return the number of
        waiting experiments that were `cancelled` and of running experiments that are `ending`."""
        path = f"/v1/experiments:cancel?{httpx.QueryParams(filters)}"
        counts = {"cancelled": 0, "ending": 0}
        more = True
        while more:
            answer = self._call("POST", path, idempotent=True)
            counts = {name: count + answer[name] for name, count in counts.items()}
            more = answer["more"]
        return counts

    def pause(self, experiment_id: Id) -> Json:
        """Request that an experiment pauses."""
        return self._call("POST", f"{_path(experiment_id)}:pause", idempotent=True)

    def resume(self, experiment_id: Id) -> Json:
        """Put a paused experiment back in the queue."""
        return self._call("POST", f"{_path(experiment_id)}:resume")

    def retry(self, experiment_id: Id, *, idempotency_key: str | None = None) -> Json:
        """Queue a copy of an experiment that failed or was cancelled. The key works as in
        `submit`."""
        return self._once(f"{_path(experiment_id)}:retry", None, idempotency_key)

    def change(self, experiment_id: Id, **changes: Any) -> Json:
        """Change fields other than the spec: name, tags, note, priority, visibility ("private" or
        "lab"), pinned."""
        return self._call("PATCH", _path(experiment_id), json=changes)

    def delete(self, experiment_id: Id) -> None:
        """Delete an experiment that is not running; `undelete` restores it for some days."""
        self._call("DELETE", _path(experiment_id))

    def undelete(self, experiment_id: Id) -> Json:
        """Restore a deleted experiment while its files still exist. Raises Refused."""
        path = f"{_path(experiment_id)}:undelete"
        return self._call("POST", path, idempotent=True)

    def me(self) -> Json:
        """Return the user of this key and the key's permissions."""
        return self._call("GET", "/v1/me")

    def sign_in_url(self) -> str:
        """Return a link that signs one browser in with this key, once, within ten minutes."""
        made = self._call("POST", "/v1/sign-in-codes")
        return f"{self.url}{made['path']}"

    def wait(
        self,
        experiment_id: Id,
        timeout_s: float | None = None,
        on_change: Callable[[Json], object] = lambda experiment: None,
        poll_s: float = 0.2,
    ) -> Json:
        """Wait until an experiment has ended, and return it whether it succeeded or not;
        `experiments.wait` raises if it failed. `on_change` is called with each polled document.
        After the first response, an outage of the service does not end the wait. If one client runs
        many waits, each polls less often. Raises TimeoutError."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._one_more_wait():
            experiment = self.get(experiment_id)
            while True:
                on_change(experiment)
                if experiment["terminal"]:
                    return experiment
                if time.monotonic() > deadline:
                    name, status = id_of(experiment_id), experiment["status"]
                    reason = (experiment.get("queue") or {}).get("reason")
                    why = "" if reason is None else f": {reason}"
                    raise TimeoutError(f"{name} is {status} after {timeout_s} s{why}")
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
        """Return the curves of an experiment by column: all series, or those with the given name
        and labels."""
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
        """Return the curves of many experiments in the given order, each with its `series` by
        column: all series, or those with the given names and labels (a label may have a list of
        values). Each thousand experiments share `max_points` points. Raises Refused."""
        ids = [id_of(one) for one in experiment_ids]
        found: list[Json] = []
        for first in range(0, len(ids), MAX_AT_ONCE):
            body = {"ids": ids[first : first + MAX_AT_ONCE], "series": series, "labels": labels,
                    "max_points": max_points}  # fmt: skip
            answer = self._call("POST", "/v1/curves:batchGet", idempotent=True, json=body)
            found += answer["items"]
        return found

    def events(self, *, kind: Sequence[str] = ()) -> Iterator[Json]:
        """Yield the status of your experiments that run or have ended within the last hour, then
        the events of all your experiments, without end: see `mptlab.events.follow_several`."""
        return follow_several(self, "/v1/events", kind)

    def events_of(
        self, experiment_id: Id, *, after: str | None = None, kind: Sequence[str] = ()
    ) -> Iterator[Json]:
        """Yield the events of an experiment, with its points, until it has ended."""
        return follow(self, f"{_path(experiment_id)}/events", after, kind)

    def logs(self, experiment_id: Id, level: str | None = None) -> Iterator[Json]:
        """Return the lines of an experiment's log so far, all or of one level: `at`, `level`,
        `message` and `seq`."""
        query: Json = {"level": level} if level else {}
        more = True
        while more:
            page = self._call("GET", f"{_path(experiment_id)}/logs", params=query)
            yield from page["items"]
            query["after"], more = page["last_seq"], page["more"]

    def texts(self, experiment_id: Id, *, limit: int | None = None, **query: Any) -> Texts:
        """Return the scores of each text of an experiment, all or at most `limit` rows. `query` is
        order (a column; with a minus before it, highest first), columns, group. Raises Refused."""
        query = {name: value for name, value in query.items() if value is not None}
        found, offset = Texts(experiment_id=id_of(experiment_id)), 0
        while offset is not None and len(found) != limit:
            size = MAX_TEXTS if limit is None else min(MAX_TEXTS, limit - len(found))
            paged = {**query, "offset": offset, "limit": size}
            page = self._call("GET", f"{_path(experiment_id)}/texts", params=paged)
            found.extend(page["items"])
            found.columns, offset = page["columns"], page["next_offset"]
        return found

    def score(
        self,
        texts: Any,
        model: str | Json,
        scores: str | Sequence[str] = ("pll",),
        *,
        column: str | None = None,
        compute: Json | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Texts:
        """Score texts by a masked language model: the name of its checkpoint, or the `model` of a
        spec. `texts` is a text, a list of texts, a Series, or a table: a DataFrame or the
        `pathlib.Path` of a file. `column` is that of the table's texts; default: the only one with
        text. The result has the other columns too. `name` is that of the experiment. `options` are
        the other fields of `evaluate.texts`. Waits until the texts are scored. Raises Refused,
        NotSucceeded, ValueError."""
        table = texts_of(texts, column)
        names = [scores] if isinstance(scores, str) else list(scores)
        spec = score_spec(table, model, self._upload, compute, scores=names, **options)
        experiment = self.experiments.create(spec, wait=True, name=name)
        rows = experiment.texts()
        rows.add(table)
        rows.notes = [*table.notes, *(line["message"] for line in experiment.logs("warning"))]
        return rows

    def rows(self, experiment_id: Id) -> list[Json]:
        """Return the row, its ids as text, seed, number of values, log-likelihood, p-value and
        unusual columns of each row that was scored with the model of another experiment. Raises
        Refused if none was."""
        content = self.artifact(experiment_id, ROWS).decode()
        lines = csv.DictReader(io.StringIO(content, newline=""))
        return [
            {name: ROW_TYPES.get(name, str)(text) for name, text in line.items()} for line in lines
        ]

    def artifacts(self, experiment_id: Id) -> list[Json]:
        """List the files of an experiment: weights, pictures."""
        return self._items(f"{_path(experiment_id)}/artifacts")

    def artifact(self, experiment_id: Id, name: str) -> bytes:
        """Return the content of a file of an experiment."""
        return self._content(f"{_path(experiment_id)}/artifacts/{quote(name, safe='')}")

    def download(
        self, experiment_id: Id, folder: str | os.PathLike[str] = ".", *names: str
    ) -> list[Path]:
        """Write the files of an experiment, all or those with the given names, into a folder. A
        file that was not received completely is not written. Raises Refused, and ValueError for an
        unknown name."""
        left = {one["name"]: one for one in self.artifacts(experiment_id)}
        if missing := [name for name in names if name not in left]:
            there = ", ".join(left) or "no files"
            raise ValueError(f"{missing[0]} does not exist: the experiment has {there}")
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [self._download(experiment_id, left[name], Path(folder)) for name in names or left]

    def bundle(self, experiment_id: Id, file: str | os.PathLike[str]) -> Path:
        """Write a zip of an ended experiment: its spec, records, curves, metrics, files, and
        instructions to compute it again. Raises Refused."""
        content = self._content(f"{_path(experiment_id)}/bundle")
        Path(file).write_bytes(content)
        return Path(file)

    def _download(self, experiment_id: Id, artifact: Json, folder: Path) -> Path:
        content = self.artifact(experiment_id, artifact["name"])
        if hashlib.sha256(content).hexdigest() != artifact["sha256"]:
            raise ValueError(f"{artifact['name']} arrived damaged: download it again")
        file = folder / Path(artifact["name"]).name
        file.write_bytes(content)
        return file

    def compare(self, experiment_ids: Iterable[Id]) -> Any:
        """Return a pandas DataFrame with a row for each experiment: name, status, the fields in
        which the specs differ, and the metrics, as means over seeds if there are several."""
        documents = self.get_many(experiment_ids)
        return needed("pandas", "frames").DataFrame(tables.comparison(documents)).set_index("id")

    def presets(self) -> list[Json]:
        """List the paper's tables and figures: their specs and published values."""
        return self._items("/v1/presets")

    def preset(self, name: str) -> Json:
        """Return one of the paper's tables or figures: its specs and published values."""
        return self._call("GET", f"/v1/presets/{quote(name, safe='')}")

    def preset_runs(self) -> list[Json]:
        """Return for each spec of each preset the newest experiment that ran it, or None."""
        return self._items("/v1/presets:runs")

    def run_preset(
        self, name: str, *, idempotency_key: str | None = None, **beside: Any
    ) -> list[Experiment]:
        """Queue all of a preset's specs, or none, with the preset's tags. Return the ids in the
        order that `verdict` needs."""
        preset, tags = self.preset(name), beside.pop("tags", ())
        names = names_of_parts(name, len(preset["specs"]))
        submissions = [
            {"spec": spec, "name": part, **beside, "tags": [*tags, *own]}
            for spec, part, own in zip(preset["specs"], names, preset["tags"], strict=True)
        ]
        ids = self.batch(submissions, idempotency_key=idempotency_key)
        return [self.experiments.get(one) for one in ids]

    def verdict(self, name: str, experiment_ids: Iterable[Id]) -> Json:
        """Return whether experiments with a preset's specs, in order, agree with the paper."""
        query = {"experiment": [id_of(one) for one in experiment_ids]}
        path = f"/v1/presets/{quote(name, safe='')}/verdict"
        return self._call("GET", path, params=query)

    def _spec(self, given: Spec) -> Any:
        """Return the spec as it is sent in a request. Raises ValueError, OSError, Refused."""
        if kind := kind_of_data(given):
            is_name = isinstance(given, str | os.PathLike)
            data, file = (os.fspath(given),) * 2 if is_name else ("an array", "mine.npy")
            use = IN_A_SPEC.get(kind, IN_A_SPEC["numbers"]).format(file=file)
            raise ValueError(f"{data} is data, not a spec: {use}")
        if is_file(given):
            given = read_spec(given)
        if not isinstance(given, str):
            return with_uploads(given, self.upload)
        if not given:
            raise ValueError("the name of the preset is empty")
        specs = self._specs_of(given)
        if len(specs) > 1:
            told = f"the preset {given} has {len(specs)} specs: call client.run_preset({given!r})"
            raise ValueError(f"{told} to queue them all")
        return specs[0]

    def _specs_of(self, preset: str) -> list[Json]:
        found = self.preset(preset)
        specs: list[Json] = found["specs"]
        return specs


def _path(experiment_id: Id) -> str:
    return f"/v1/experiments/{quote(id_of(experiment_id), safe='')}"

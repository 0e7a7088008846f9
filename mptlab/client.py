"""The client: submit experiments, read their results, and administer the lab."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from mptlab import tables
from mptlab.connection import Connection, checked
from mptlab.curves import Curves, needed
from mptlab.errors import Json
from mptlab.events import follow_several
from mptlab.experiments import POLL_S, Experiment, Experiments, Id, id_of
from mptlab.specs import is_spec_file, kind_of_data, names_of_parts, not_none, read_spec
from mptlab.sweeps import Sweep, points_of
from mptlab.text_tables import texts_of
from mptlab.texts import Texts, score_spec
from mptlab.uploads import print_reading, send_file, with_uploads

MAX_AT_ONCE = 1000
"""Maximum number of experiments in one request for curves."""
MAX_WITH_SPECS = 50
"""Maximum number of experiments in one request that returns specs."""
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

Spec = Any
"""A mapping, a pydantic model, the path of a JSON or YAML file, or the name of a preset."""


class Client(Connection):
    """Client of the service. `Connection` explains where the URL and the key come from.

    `experiments` and `sweep` return objects. The methods of this class with an `experiment_id` do
    the same as those of an `Experiment`, and return the service's JSON documents unchanged."""

    on_upload: Callable[[str, Json], object] = staticmethod(print_reading)
    """Called with the name of each uploaded file and its data set. By default it prints what was
    read of the file on standard error."""

    @cached_property
    def experiments(self) -> Experiments:
        """Your experiments: `create`, `get`, `list`, `wait`. Call it to iterate over all of
        them."""
        return Experiments(self)

    def folded(self, **filters: Any) -> Iterator[tuple[Json, Json]]:
        """Yield your experiments as `experiments()` does, with each sweep once: pairs of an
        experiment and an empty object, or of the newest experiment of a sweep and the sweep. The
        experiment of a sweep is empty if all its points had been computed before."""
        whose = not_none(whose=filters.get("whose"))
        for page in self._pages("/v1/experiments", {**filters, "folded": True}):
            sweeps: dict[str, Json] = {}
            if ids := page["sweeps"]:
                query = {"id": ids, "limit": len(ids), **whose}
                sweeps = {sweep["id"]: sweep for sweep in self._listed("/v1/sweeps", query)}
            pairs = [(run, sweeps.pop(run["sweep"] or "", {})) for run in page["items"]]
            pairs += [({}, sweep) for sweep in sweeps.values()]
            yield from sorted(
                pairs, key=lambda pair: str((pair[0] or pair[1])["created_at"]), reverse=True
            )

    def submit(self, spec: Spec, *, idempotency_key: str | None = None, **beside: Any) -> Json:
        """Queue an experiment. `beside` may have name, tags, note, priority, visibility, project,
        after, cache. If the same experiment was computed before, return that experiment, with
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
        return [document["id"] for document in answer["items"]]

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
        priority, visibility, project, concurrency, after, cache. Raises Refused."""
        points = points_of(grid) if grid is not None else {}
        body = {"spec": self._spec(spec), **points, **beside}
        return Sweep(self, self._once("/v1/sweeps", body, idempotency_key)["id"])

    def get_sweep(self, sweep_id: str) -> Sweep:
        """Return an existing sweep. Raises Refused."""
        return Sweep(self, self._call("GET", f"/v1/sweeps/{quote(sweep_id, safe='')}")["id"])

    def sweeps(self, **filters: Any) -> Iterator[Json]:
        """Yield your sweeps, newest first; `whose="lab"` lists those shared with the lab,
        `whose="project"` those shared with your projects."""
        return self._listed("/v1/sweeps", filters)

    def validate(self, spec: Spec) -> Json:
        """Return the resolved spec, its estimated run time and memory, its position in the queue if
        it were submitted, and whether it was computed before. Raises Refused."""
        body = {"spec": self._spec(spec)}
        return self._call("POST", "/v1/experiments:validate", idempotent=True, json=body)

    def score(
        self,
        texts: Any,
        model: str | Json,
        scores: str | Sequence[str] = ("pll",),
        *,
        column: str | None = None,
        compute: Json | None = None,
        name: str | None = None,
        project: str | None = None,
        **options: Any,
    ) -> Texts:
        """Score texts by a masked language model: the name of its checkpoint, or the `model` of a
        spec. `texts` is a text, a list of texts, a Series, or a table: a DataFrame or the
        `pathlib.Path` of a file. `column` is that of the table's texts; default: the only one with
        text. The result has the other columns too. `name` and `project` are those of the
        experiment. `options` are the other fields of `evaluate.texts`. Waits until the texts are
        scored. Raises Refused, NotSucceeded, ValueError."""
        table = texts_of(texts, column)
        names = [scores] if isinstance(scores, str) else list(scores)
        spec = score_spec(table, model, self._upload, compute, scores=names, **options)
        experiment = self.experiments.create(spec, wait=True, name=name, project=project)
        rows = experiment.texts()
        rows.add(table)
        rows.notes = [*table.notes, *(line["message"] for line in experiment.logs("warning"))]
        return rows

    def _spec(self, given: Spec) -> Any:
        """Return the spec as it is sent in a request. Raises ValueError, OSError, Refused."""
        if kind := kind_of_data(given):
            is_name = isinstance(given, str | os.PathLike)
            data, file = (os.fspath(given),) * 2 if is_name else ("an array", "mine.npy")
            use = IN_A_SPEC.get(kind, IN_A_SPEC["numbers"]).format(file=file)
            raise ValueError(f"{data} is data, not a spec: {use}")
        if is_spec_file(given):
            given = read_spec(given)
        if not isinstance(given, str):
            return with_uploads(given, self.upload)
        if not given:
            raise ValueError("the name of the preset is empty")
        specs = self.preset(given)["specs"]
        if len(specs) > 1:
            advice = f"call client.run_preset({given!r}) to queue them all"
            raise ValueError(f"the preset {given} has {len(specs)} specs: {advice}")
        return specs[0]

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
        project: str | None = None,
    ) -> Json:
        """Upload a data set of numbers or text and return it; use its id or file name in a spec.
        Its `summary` and `warnings` state what was read. Uploading the same bytes with the same
        options again returns the same data set.

        `index` names columns of a table that identify the rows, `drop_non_numeric` leaves out all
        columns that are not numbers. `header` says whether the first line of a text file has the
        names of the columns; `sep`, `decimal` and `thousands` are its separators. The members of
        `project` may use the data set. Raises Refused, OSError."""
        dataset = self._upload(
            Path(file),
            header=header,
            sep="tab" if sep == "\t" else sep,
            decimal=decimal,
            thousands=thousands,
            index=[index] if isinstance(index, str) else [*index],
            drop_non_numeric=drop_non_numeric or None,
            project=project,
        )
        self.on_upload(Path(file).name, dataset)
        return dataset

    def _upload(self, file: Path, **options: Any) -> Json:
        send = partial(send_file, self._http, file, not_none(**options))
        dataset: Json = checked(self._send(send, idempotent=True)).json()
        return dataset

    def datasets(self, **filters: Any) -> Iterator[Json]:
        """Yield your uploads, newest first; `whose="lab"` lists those shared with the lab,
        `whose="project"` those shared with your projects."""
        return self._listed("/v1/datasets", filters)

    def dataset(self, dataset_id: str) -> Json:
        """Return an upload: its name, columns and sizes. Raises Refused."""
        return self._call("GET", f"/v1/datasets/{quote(dataset_id, safe='')}")

    def get_many(self, experiment_ids: Iterable[Id]) -> list[Json]:
        """Return many experiments in the given order, with their specs and their metrics so far.
        Raises Refused if an experiment does not exist."""
        wanted = [id_of(experiment) for experiment in experiment_ids]
        ids = [*dict.fromkeys(wanted)]
        documents: Json = {}
        for first in range(0, len(ids), MAX_WITH_SPECS):
            body = {"ids": ids[first : first + MAX_WITH_SPECS]}
            path = "/v1/experiments:batchGet"
            answer = self._call("POST", path, idempotent=True, json=body)
            documents |= {document["id"]: document for document in answer["items"]}
        return [documents[experiment_id] for experiment_id in wanted]

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
        ids = [id_of(experiment) for experiment in experiment_ids]
        curves: list[Json] = []
        for first in range(0, len(ids), MAX_AT_ONCE):
            body = {"ids": ids[first : first + MAX_AT_ONCE], "series": series, "labels": labels,
                    "max_points": max_points}  # fmt: skip
            answer = self._call("POST", "/v1/curves:batchGet", idempotent=True, json=body)
            curves += answer["items"]
        return curves

    def events(self, *, kind: Sequence[str] = ()) -> Iterator[Json]:
        """Yield the status of your experiments that run or have ended within the last hour, then
        the events of all your experiments, without end: see `mptlab.events.follow_several`."""
        return follow_several(self, "/v1/events", kind)

    def compare(self, experiment_ids: Iterable[Id]) -> Any:
        """Return a pandas DataFrame with a row for each experiment: name, status, the fields in
        which the specs differ, and the metrics, as means over seeds if there are several."""
        documents = self.get_many(experiment_ids)
        return needed("pandas", "frames").DataFrame(tables.comparison(documents)).set_index("id")

    # Written out: a table of forwarded methods loses names and docstrings in an editor.
    def get(self, experiment_id: Id) -> Json:
        """Return an experiment's status and its metrics so far."""
        return self._experiment(experiment_id).refresh().document

    def wait(
        self,
        experiment_id: Id,
        timeout_s: float | None = None,
        on_change: Callable[[Json], object] = lambda experiment: None,
        poll_s: float = POLL_S,
    ) -> Json:
        """Wait until an experiment has ended, and return it whether it succeeded or not;
        `experiments.wait` raises if it failed. `on_change` is called with each polled document.
        After the first response, an outage of the service does not end the wait. If one client runs
        many waits, each polls less often. Raises TimeoutError."""
        path = self._experiment(experiment_id)._path
        return self._wait(path, timeout_s, on_change, poll_s)

    def cancel(self, experiment_id: Id) -> Json:
        """Request the cancellation of an experiment."""
        return self._experiment(experiment_id).cancel().document

    def pause(self, experiment_id: Id) -> Json:
        """Request that an experiment pauses."""
        return self._experiment(experiment_id).pause().document

    def resume(self, experiment_id: Id) -> Json:
        """Put a paused experiment back in the queue."""
        return self._experiment(experiment_id).resume().document

    def retry(self, experiment_id: Id, *, idempotency_key: str | None = None) -> Json:
        """Queue a copy of an experiment that failed or was cancelled. The key works as in
        `submit`."""
        return self._experiment(experiment_id).retry(idempotency_key=idempotency_key).document

    def change(self, experiment_id: Id, **changes: Any) -> Json:
        """Change fields other than the spec: name, tags, note, priority, visibility ("private",
        "project" or "lab"), pinned."""
        return self._experiment(experiment_id).change(**changes).document

    def delete(self, experiment_id: Id) -> None:
        """Delete an experiment that is not running; `undelete` restores it for some days."""
        self._experiment(experiment_id).delete()

    def undelete(self, experiment_id: Id) -> Json:
        """Restore a deleted experiment while its files still exist. Raises Refused."""
        return self._experiment(experiment_id).undelete().document

    def curves(
        self,
        experiment_id: Id,
        series: str | None = None,
        max_points: int = 100_000,
        **labels: Any,
    ) -> Curves:
        """Return the curves of an experiment: see `Experiment.curves`."""
        return self._experiment(experiment_id).curves(series, max_points, **labels)

    def events_of(
        self, experiment_id: Id, *, after: str | None = None, kind: Sequence[str] = ()
    ) -> Iterator[Json]:
        """Yield the events of an experiment: see `Experiment.events`."""
        return self._experiment(experiment_id).events(after=after, kind=kind)

    def logs(self, experiment_id: Id, level: str | None = None) -> Iterator[Json]:
        """Yield the lines of an experiment's log so far: see `Experiment.logs`."""
        return self._experiment(experiment_id)._log_lines(level)

    def texts(
        self,
        experiment_id: Id,
        *,
        order: str = "row",
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        group: str | None = None,
    ) -> Texts:
        """Return the scores of each text of an experiment: see `Experiment.texts`."""
        experiment = self._experiment(experiment_id)
        return experiment.texts(order=order, limit=limit, columns=columns, group=group)

    def rows(self, experiment_id: Id) -> list[Json]:
        """Return the scores of each row of an experiment: see `Experiment.rows`."""
        return self._experiment(experiment_id).rows()

    def artifacts(self, experiment_id: Id) -> list[Json]:
        """List the files of an experiment: weights, pictures."""
        return self._experiment(experiment_id).artifacts()

    def artifact(self, experiment_id: Id, name: str) -> bytes:
        """Return the content of a file of an experiment."""
        return self._experiment(experiment_id).artifact(name)

    def download(
        self, experiment_id: Id, folder: str | os.PathLike[str] = ".", *names: str
    ) -> list[Path]:
        """Write the files of an experiment into a folder: see `Experiment.download`."""
        return self._experiment(experiment_id).download(folder, *names)

    def bundle(self, experiment_id: Id, file: str | os.PathLike[str]) -> Path:
        """Write a zip of an ended experiment: see `Experiment.bundle`."""
        return self._experiment(experiment_id).bundle(file)

    def _experiment(self, experiment_id: Id) -> Experiment:
        return Experiment(self, {"id": id_of(experiment_id)})

    def presets(self) -> list[Json]:
        """List the paper's tables and figures: their specs and published values."""
        return self._items("/v1/presets")

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints in the lab's folder."""
        names: list[str] = self._call("GET", "/v1/presets")["checkpoints"]
        return names

    def openapi(self) -> Json:
        """Return the OpenAPI document, which describes the API and all fields of a spec."""
        return self._call("GET", "/openapi.json")

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
            {"spec": spec, "name": part, **beside, "tags": [*tags, *preset_tags]}
            for spec, part, preset_tags in zip(preset["specs"], names, preset["tags"], strict=True)
        ]
        ids = self.batch(submissions, idempotency_key=idempotency_key)
        return [self.experiments.get(experiment_id) for experiment_id in ids]

    def verdict(self, name: str, experiment_ids: Iterable[Id]) -> Json:
        """Return whether experiments with a preset's specs, in order, agree with the paper."""
        query = {"experiment": [id_of(experiment) for experiment in experiment_ids]}
        path = f"/v1/presets/{quote(name, safe='')}/verdict"
        return self._call("GET", path, params=query)

    def me(self) -> Json:
        """Return the user of this key and the key's permissions."""
        return self._call("GET", "/v1/me")

    def sign_in_url(self) -> str:
        """Return a link that signs one browser in with this key, once, within ten minutes."""
        return f"{self.url}{self._call('POST', '/v1/sign-in-codes')['path']}"

    def queue(self) -> Json:
        """Return your share of the server, your limits, and your waiting experiments in queue
        order."""
        return self._call("GET", "/v1/queue")

    def workers(self) -> list[Json]:
        """List the live workers."""
        return self._items("/v1/workers")

    def worker_history(self, hours: int = 6) -> Json:
        """Return how busy the workers were over the last hours (at most 24) and their free memory:
        `at` holds the times, and each of `items` holds a list of values at those times."""
        return self._call("GET", "/v1/workers/history", params={"hours": hours})

    def drains(self) -> list[Json]:
        """List the drains of machines that are planned or have not ended, the earliest first."""
        return self._items("/v1/drains")

    def drain(
        self,
        host: str,
        hand_back_after_s: float | None = None,
        lasts_s: float | None = None,
        starts_in_s: float | None = None,
    ) -> Json:
        """Let no further run start on a machine; for admins. Its runs are handed back after
        `hand_back_after_s` seconds (default: an hour, or half of a shorter drain). The drain ends
        after `lasts_s` seconds, or with `undrain`. With `starts_in_s` it begins after these
        seconds, runs are handed back then by default, and runs that are expected to end before
        still start."""
        body = {
            "host": host,
            "starts_in_s": starts_in_s,
            "hand_back_after_s": hand_back_after_s,
            "lasts_s": lasts_s,
        }
        return self._call("POST", "/v1/drains", json=body)

    def undrain(self, host: str) -> None:
        """Let runs start on a machine again, or end its drain before it begins; for admins."""
        self._call("DELETE", f"/v1/drains/{quote(host, safe='')}")

    def users(self) -> list[Json]:
        """List all users; for admins."""
        return self._items("/v1/users")

    def add_user(self, name: str, role: str = "member") -> Json:
        return self._call("POST", "/v1/users", json={"name": name, "role": role})

    def change_user(self, name: str, **changes: Any) -> Json:
        """Change the `role`, or disable the user with `active=False`: the user's keys are then
        refused."""
        return self._call("PATCH", f"/v1/users/{name}", json=changes)

    def projects(self) -> list[Json]:
        """List your projects, or all if you are an admin."""
        return self._items("/v1/projects")

    def add_project(self, name: str, **how: Any) -> Json:
        """Add a project; for admins. `how` is `members`, `shares` and limits."""
        return self._call("POST", "/v1/projects", json={"name": name, **how})

    def change_project(self, name: str, **changes: Any) -> Json:
        """Change the shares or limits of a project, or its members by `add_members` and
        `remove_members`, or close it with `open=False`; for admins."""
        return self._call("PATCH", f"/v1/projects/{quote(name, safe='')}", json=changes)

    def keys(self, name: str) -> list[Json]:
        """List a user's keys: your own, or any user's if you are an admin."""
        return self._items(f"/v1/users/{name}/keys")

    def add_key(self, user: str, **how: Any) -> Json:
        """Create a key for a user. The key itself is in `key` and is shown only now. `how` is
        `name` (the purpose of the key), `scopes` and `lasts_days`."""
        return self._call("POST", f"/v1/users/{user}/keys", json=how)

    def revoke_key(self, name: str, key_id: str) -> None:
        """Revoke a key; later requests with it are refused."""
        self._call("DELETE", f"/v1/users/{name}/keys/{key_id}")

    def audit(self, **filters: Any) -> Iterator[Json]:
        """Yield the entries of the audit log, newest first. `actor` and `object_id` filter."""
        return self._listed("/v1/audit", filters)

    def usage(self) -> list[Json]:
        """List each user's use of the server, heaviest recent user first; for admins."""
        return self._items("/v1/usage")

    def projects_usage(self) -> list[Json]:
        """List each project's use of the server, by name; for admins."""
        projects: list[Json] = self._call("GET", "/v1/usage").get("projects", [])
        return projects

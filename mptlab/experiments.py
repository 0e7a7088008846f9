"""Experiments as objects: `client.experiments.create(…)`, `.wait()`, `.curves()`, `.plot()`."""

import csv
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mptlab.curves import Curves, picture_html, table_html
from mptlab.errors import Json, NotSucceeded
from mptlab.events import follow
from mptlab.progress import followed
from mptlab.specs import not_none
from mptlab.tables import summary, with_error
from mptlab.texts import Texts

if TYPE_CHECKING:
    from mptlab.client import Client

MAX_A_PAGE = 500
POLL_S = 0.2
"""Seconds between two looks of a wait at an experiment."""
MAX_TEXTS = 10_000
"""Maximum number of rows in one request for texts."""
ROWS = "rows.csv"
"""File with the score of each row."""
ROW_TYPES: Mapping[str, Callable[[str], Any]] = {
    "row": int,
    "seed": int,
    "values": int,
    "log_likelihood": float,
    "p_value": float,
    "unusual_columns": lambda text: re.split(r"(?<=\d); ", text) if text else [],
}
"""Types of its columns that are not text."""


class Experiment:
    """An experiment of the service, by its `id`; `document` is the last document received."""

    def __init__(self, client: "Client", document: Json):
        self.id: str = document["id"]
        self.document = document
        self._path = f"/v1/experiments/{quote(self.id, safe='')}"
        self._client = client

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<Experiment {self.id}{name} {self.status}>"

    def __getitem__(self, field: str) -> Any:
        """Return a field of the document."""
        return self.document[field]

    @property
    def name(self) -> str | None:
        name: str | None = self.document.get("name")
        return name

    @property
    def status(self) -> str:
        """Last known status: queued, running, paused, succeeded, failed or
        cancelled."""
        status: str = self.document["status"]
        return status

    @property
    def spec(self) -> Json:
        if "spec" not in self.document:  # a list goes without
            self.refresh()
        spec: Json = self.document["spec"]
        return spec

    @property
    def metrics(self) -> Json:
        """Each metric by its name: its mean over seeds, and the mean's standard error as `…
        std_err`. `document["metrics"]` has the values of each seed."""
        if "metrics" not in self.document or self.document.get("summary") is None:
            self.refresh()
        return summary(self.document["summary"])

    def refresh(self) -> "Experiment":
        """Request the current document."""
        self.document = self._client._call("GET", self._path)
        return self

    def wait(
        self, timeout_s: float | None = None, *, progress: bool = True, check: bool = True
    ) -> "Experiment":
        """Wait until it has ended, and show its progress. Raises NotSucceeded if it failed or was
        cancelled, unless `check` is false, and TimeoutError."""
        with followed(progress) as show:
            known = "status" in self.document
            self.document = self._client._wait(self._path, timeout_s, show, POLL_S, is_known=known)
        if check and self.status != "succeeded":
            raise NotSucceeded(self.document)
        return self

    def curves(self, series: str | None = None, max_points: int = 100_000, **labels: Any) -> Curves:
        """Return its curves by column: all, or those with the given name and labels, such as
        `seed=4`."""
        path = f"{self._path}/curves" + (f"/{quote(series, safe='')}" if series else "")
        answer = self._client._call("GET", path, params={"max_points": max_points, **labels})
        return Curves(answer["series"], self.name or "")

    def plot(self, kind: str | None = None, file: str | os.PathLike[str] | None = None) -> Any:
        """Return its curves as a figure: see `Curves.plot`."""
        return self.curves().plot(kind, file)

    def events(self, *, after: str | None = None, kind: Sequence[str] = ()) -> Iterator[Json]:
        """Yield its events until it has ended, each with its `id`, its `kind` (status, log,
        progress, points) and `data`; `kind` filters. A broken stream is opened again. Raises
        Refused."""
        return follow(self._client, f"{self._path}/events", after, kind)

    def logs(self, level: str | None = None) -> list[Json]:
        """Return the lines of its log so far, all or of one level: `at`, `level`, `message` and
        `seq`."""
        return [*self._log_lines(level)]

    def _log_lines(self, level: str | None) -> Iterator[Json]:
        query = not_none(level=level)
        more = True
        while more:
            page = self._client._call("GET", f"{self._path}/logs", params=query)
            yield from page["items"]
            query["after"], more = page["last_seq"], page["more"]

    def texts(
        self,
        *,
        order: str = "row",
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        group: str | None = None,
    ) -> Texts:
        """Return the scores of each of its texts, all or at most `limit` rows. `order` is a column;
        with a minus before it, highest first. Raises Refused."""
        query = not_none(order=order, columns=columns, group=group)
        texts, offset = Texts(experiment_id=self.id), 0
        while offset is not None and len(texts) != limit:
            size = MAX_TEXTS if limit is None else min(MAX_TEXTS, limit - len(texts))
            window = {"offset": offset, "limit": size}
            page = self._client._call("GET", f"{self._path}/texts", params=query | window)
            texts.extend(page["items"])
            texts.columns, offset = page["columns"], page["next_offset"]
        return texts

    def rows(self) -> list[Json]:
        """Return the row, its ids as text, seed, number of values, log-likelihood, p-value and
        unusual columns of each row that was scored with the model of another experiment. Raises
        Refused if none was."""
        lines = csv.DictReader(io.StringIO(self.artifact(ROWS).decode(), newline=""))
        return [
            {name: ROW_TYPES.get(name, str)(text) for name, text in line.items()} for line in lines
        ]

    def artifacts(self) -> list[Json]:
        """List its files: weights, pictures."""
        return self._client._items(f"{self._path}/artifacts")

    def artifact(self, name: str) -> bytes:
        """Return the content of one of its files."""
        return self._client._content(f"{self._path}/artifacts/{quote(name, safe='')}")

    def download(self, folder: str | os.PathLike[str] = ".", *names: str) -> list[Path]:
        """Write its files into a folder: all, or those with the given names. A file that was not
        received completely is not written. Raises Refused, and ValueError for an unknown name."""
        digests = {artifact["name"]: artifact["sha256"] for artifact in self.artifacts()}
        if missing := [name for name in names if name not in digests]:
            there = ", ".join(digests) or "no files"
            raise ValueError(f"{missing[0]} does not exist: the experiment has {there}")
        Path(folder).mkdir(parents=True, exist_ok=True)
        files = []
        for name in names or digests:
            content = self.artifact(name)
            if hashlib.sha256(content).hexdigest() != digests[name]:
                raise ValueError(f"{name} arrived damaged: download it again")
            file = Path(folder) / Path(name).name
            file.write_bytes(content)
            files.append(file)
        return files

    def bundle(self, file: str | os.PathLike[str]) -> Path:
        """Write a zip of the ended experiment: its spec, records, curves, metrics, files, and
        instructions to compute it again. Raises Refused."""
        Path(file).write_bytes(self._client._content(f"{self._path}/bundle"))
        return Path(file)

    def cancel(self) -> "Experiment":
        """Request its cancellation."""
        self.document = self._client._call("POST", f"{self._path}:cancel", idempotent=True)
        return self

    def pause(self) -> "Experiment":
        """Request that it pauses."""
        self.document = self._client._call("POST", f"{self._path}:pause", idempotent=True)
        return self

    def resume(self) -> "Experiment":
        """Put it back in the queue after a pause."""
        self.document = self._client._call("POST", f"{self._path}:resume")
        return self

    def retry(self, *, idempotency_key: str | None = None) -> "Experiment":
        """Queue a copy of this experiment, which failed or was cancelled."""
        copy = self._client._once(f"{self._path}:retry", None, idempotency_key)
        return Experiment(self._client, copy)

    def change(self, **changes: Any) -> "Experiment":
        """Change name, tags, note, priority, visibility, pinned."""
        self.document = self._client._call("PATCH", self._path, json=changes)
        return self

    def delete(self) -> None:
        """Delete it; it must not be running. `undelete` restores it for some days."""
        self._client._call("DELETE", self._path)

    def undelete(self) -> "Experiment":
        """Restore it after a deletion, while its files still exist. Raises Refused."""
        self.document = self._client._call("POST", f"{self._path}:undelete", idempotent=True)
        return self

    def _repr_html_(self) -> str:
        facts = {name: self.document.get(name) for name in ("id", "name", "status", "tags")}
        if failure := self.document.get("failure"):
            facts["failure"] = f"{failure['kind']}: {failure['message']}"
        rows = self.document.get("summary") or []
        facts |= {row["title"]: with_error(row["value"], row["std_err"]) for row in rows}
        return table_html(("", ""), facts.items()) + picture_html(self.plot)


Id = str | Experiment | Mapping[str, Any]
"""Reference to an experiment: its id, the object, or the service's document of it."""


def id_of(given: Id) -> str:
    if isinstance(given, Experiment):
        return given.id
    return given if isinstance(given, str) else given["id"]


def first(pages: Callable[..., Iterator[Json]], most: int, **filters: Any) -> list[Json]:
    """Return the first documents of a list of the service, such as `client.sweeps`."""
    return [*islice(pages(**{"limit": min(most, MAX_A_PAGE), **filters}), most)]


class Experiments:
    """The experiments of a client: `client.experiments`."""

    def __init__(self, client: "Client"):
        self._client = client

    def __call__(self, **filters: Any) -> Iterator[Json]:
        """Yield the documents of your experiments, newest first, over all pages. They have no specs
        unless `fields="full"` (with `limit` at most 50). `whose="lab"` lists those shared
        with the lab, `whose="project"` those shared with your projects. Filter and sort with
        `filter="metrics.lml > -61 and tag = x"`, `order_by="metrics.lml desc"`, status, tag,
        family, name, owner, q, created_after and others. Raises Refused."""
        return self._client._listed("/v1/experiments", filters)

    def create(
        self,
        spec: Any,
        *,
        wait: bool = False,
        progress: bool = True,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        **beside: Any,
    ) -> Experiment:
        """Queue an experiment from a mapping, a pydantic model, the path of a JSON or YAML file, or
        the name of a preset. `beside` may have name, tags, note, priority, visibility, project,
        after, cache. With `wait`, return after it has succeeded. Raises Refused, NotSucceeded,
        TimeoutError."""
        document = self._client.submit(spec, idempotency_key=idempotency_key, **beside)
        experiment = Experiment(self._client, document)
        return experiment.wait(timeout_s, progress=progress) if wait else experiment

    def get(self, experiment_id: Id) -> Experiment:
        """Return an experiment. Raises Refused."""
        return Experiment(self._client, {"id": id_of(experiment_id)}).refresh()

    def wait(
        self,
        experiment_id: Id,
        timeout_s: float | None = None,
        *,
        progress: bool = True,
        check: bool = True,
    ) -> Experiment:
        """Wait until an experiment has ended: see `Experiment.wait`."""
        waited = Experiment(self._client, {"id": id_of(experiment_id)})
        return waited.wait(timeout_s, progress=progress, check=check)

    def list(self, most: int | None = 100, **filters: Any) -> Sequence[Experiment]:
        """Return your newest experiments, at most `most` of them; None means all. Filters are the
        same as for a call."""
        documents = self(**filters) if most is None else first(self, most, **filters)
        return [Experiment(self._client, document) for document in documents]

"""Experiments as objects: `client.experiments.create(…)`, `.wait()`, `.curves()`, `.plot()`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptlab.curves import Curves, table_html
from mptlab.errors import Json, NotSucceeded
from mptlab.progress import followed
from mptlab.tables import summary, with_error
from mptlab.texts import Texts

if TYPE_CHECKING:
    from mptlab.api import Client

MAX_A_PAGE = 500


class Experiment:
    """An experiment of the service, by its `id`; `document` is the last document received."""

    def __init__(self, client: "Client", document: Json):
        self.id: str = document["id"]
        self.document = document
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
        self.document = self._client.get(self.id)
        return self

    def wait(
        self, timeout_s: float | None = None, *, progress: bool = True, check: bool = True
    ) -> "Experiment":
        """Wait until it has ended, and show its progress. Raises NotSucceeded if it failed or was
        cancelled, unless `check` is false, and TimeoutError."""
        with followed(progress) as show:
            self.document = self._client.wait(self.id, timeout_s, on_change=show)
        if check and self.status != "succeeded":
            raise NotSucceeded(self.document)
        return self

    def curves(self, series: str | None = None, max_points: int = 100_000, **labels: Any) -> Curves:
        """Return its curves: all, or those with the given name and labels, such as `seed=4`."""
        found = self._client.curves(self.id, series, max_points, **labels)
        found.title = self.name or ""
        return found

    def events(self, *, after: str | None = None, kind: Sequence[str] = ()) -> Iterator[Json]:
        """Yield its events until it has ended, each with its `id`, its `kind` (status, log,
        progress, points) and `data`; `kind` filters. A broken stream is opened again. Raises
        Refused."""
        return self._client.events_of(self.id, after=after, kind=kind)

    def logs(self, level: str | None = None) -> list[Json]:
        """Return the lines of its log so far, all or of one level."""
        return list(self._client.logs(self.id, level))

    def plot(self, kind: str | None = None, file: str | os.PathLike[str] | None = None) -> Any:
        """Return its curves as a figure: see `Curves.plot`."""
        curves = self.curves()
        return curves.plot(kind, file)

    def texts(
        self,
        *,
        order: str = "row",
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        group: str | None = None,
    ) -> Texts:
        """Return the scores of each of its texts: see `Client.texts`."""
        wanted = {"order": order, "columns": columns, "group": group}
        return self._client.texts(self.id, limit=limit, **wanted)

    def rows(self) -> list[Json]:
        """Return the log-likelihood of each row (see `Client.rows`)."""
        return self._client.rows(self.id)

    def artifacts(self) -> list[Json]:
        """List its files: weights, pictures."""
        return self._client.artifacts(self.id)

    def download(self, folder: str | os.PathLike[str] = ".", *names: str) -> list[Path]:
        """Write its files into a folder: all, or those with the given names."""
        return self._client.download(self.id, folder, *names)

    def bundle(self, file: str | os.PathLike[str]) -> Path:
        """Write a zip file with all data of the ended experiment: see `Client.bundle`."""
        return self._client.bundle(self.id, file)

    def cancel(self) -> "Experiment":
        """Request its cancellation."""
        return self._seen(self._client.cancel(self.id))

    def pause(self) -> "Experiment":
        """Request that it pauses."""
        return self._seen(self._client.pause(self.id))

    def resume(self) -> "Experiment":
        """Put it back in the queue after a pause."""
        return self._seen(self._client.resume(self.id))

    def retry(self) -> "Experiment":
        """Queue a copy of this experiment, which failed or was cancelled."""
        return Experiment(self._client, self._client.retry(self.id))

    def change(self, **changes: Any) -> "Experiment":
        """Change name, tags, note, priority, visibility, pinned."""
        return self._seen(self._client.change(self.id, **changes))

    def delete(self) -> None:
        """Delete it; it must not be running."""
        self._client.delete(self.id)

    def _seen(self, document: Json) -> "Experiment":
        self.document = document
        return self

    def _repr_html_(self) -> str:
        told = {name: self.document.get(name) for name in ("id", "name", "status", "tags")}
        if failure := self.document.get("failure"):
            told["failure"] = f"{failure['kind']}: {failure['message']}"
        rows = self.document.get("summary") or []
        told |= {row["title"]: with_error(row["value"], row["std_err"]) for row in rows}
        return table_html(("", ""), told.items())


Id = str | Experiment | Mapping[str, Any]
"""Reference to an experiment: its id, the object, or the service's document of it."""


def id_of(given: Id) -> str:
    if isinstance(given, Experiment):
        return given.id
    return given if isinstance(given, str) else given["id"]


class Experiments:
    """The experiments of a client: `client.experiments`."""

    def __init__(self, client: "Client"):
        self._client = client

    def __call__(self, **filters: Any) -> Iterator[Json]:
        """Yield the documents of your experiments, newest first, over all pages. They have no specs
        unless `fields="full"` (with `limit` at most 50). `whose="lab"` lists shared experiments.
        Filter and sort with `filter="metrics.lml > -61 and tag = x"`, `order_by="metrics.lml
        desc"`, status, tag, family, name, owner, q, created_after and others. Raises Refused."""
        return self._client._pages("/v1/experiments", filters)

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
        the name of a preset. `beside` may have name, tags, note, priority, visibility, after,
        cache. With `wait`, return after it has succeeded. Raises Refused, NotSucceeded,
        TimeoutError."""
        document = self._client.submit(spec, idempotency_key=idempotency_key, **beside)
        made = Experiment(self._client, document)
        return made.wait(timeout_s, progress=progress) if wait else made

    def get(self, experiment_id: Id) -> Experiment:
        """Return an experiment. Raises Refused."""
        return Experiment(self._client, self._client.get(experiment_id))

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
        if most is not None:
            filters = {"limit": min(most, MAX_A_PAGE), **filters}
        found: list[Experiment] = []
        documents = self(**filters)
        while len(found) != most and (document := next(documents, None)):
            found.append(Experiment(self._client, document))
        return found

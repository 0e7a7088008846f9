"""A sweep in the client: wait for it, read its table, cancel it."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mptlab.curves import needed, picture_html, table_html
from mptlab.errors import Json, NotSucceeded, Refused
from mptlab.events import follow_several
from mptlab.progress import followed
from mptlab.tables import sweep_for_people

if TYPE_CHECKING:
    from mptlab.client import Client


class Sweep:
    """A sweep of the service, by its `id`."""

    def __init__(self, client: "Client", sweep_id: str):
        self.id = sweep_id
        self._client = client
        self._path = f"/v1/sweeps/{sweep_id}"

    def get(self) -> Json:
        """Return its status, the number of points by status, its progress and its expected end."""
        return self._client._call("GET", self._path)

    def wait(
        self,
        timeout_s: float | None = None,
        on_change: Callable[[Json], object] = lambda sweep: None,
        poll_s: float = 1.0,
        *,
        progress: bool = True,
        check: bool = True,
    ) -> Json:
        """Wait until all its points have ended, and return it; `on_change` is called with each
        polled document. Raises NotSucceeded if a point failed or was cancelled, unless `check` is
        false, and TimeoutError."""
        with followed(progress) as show:

            def changed(sweep: Json) -> None:
                show(sweep)
                on_change(sweep)

            sweep = self._client._wait(self._path, timeout_s, changed, poll_s, is_known=True)
        if check and sweep["status"] != "succeeded":
            raise NotSucceeded(sweep)
        return sweep

    def events(self, *, kind: Sequence[str] = ()) -> Iterator[Json]:
        """Yield the present status of all its experiments, then their events in one stream, until
        all have ended: each with its `experiment_id`, its `kind` (status, log, progress, points)
        and `data`. Each end is yielded once, even if the service restarts meanwhile."""
        return follow_several(self._client, f"{self._path}/events", kind)

    def table(self, order_by: str | None = None) -> list[Json]:
        """Return a row for each point: its number, experiment and status, the swept fields by their
        paths, and each metric over its seeds, with its standard error as `… std_err` and the number
        of seeds as `… count`. They are in their order or in that of a column: "lml desc"."""
        return [flat_row(row) for row in self.table_document(order_by)["items"]]

    def means(self, order_by: str | None = None) -> list[Json]:
        """Return the same over all seeds: a row for each choice of the swept fields other than
        `seeds`, with its number of `points`. If seeds are not swept, it is the table."""
        return [flat_row(row) for row in rows_of(self.table_document(order_by))]

    def table_document(self, order_by: str | None = None) -> Json:
        """Return the service's table: its points, also pooled over seeds, with the best row and
        what to say about it."""
        query = {} if order_by is None else {"order_by": order_by}
        return self._client._call("GET", f"{self._path}/table", params=query)

    def plot(
        self,
        y: str | None = None,
        x: str | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Return a matplotlib figure of a metric against a swept field, with a line for each choice
        of the other fields, and save it if `file` is given. By default `y` is the held-out LML or
        the best measure that there is, and `x` the first field. Raises ValueError."""
        needed("matplotlib", "plots")
        from mptlab import plots, swept_plots

        figure = swept_plots.draw(self.table_document(), y, x, self.get()["name"] or "")
        if file is not None:
            plots.save(figure, file)
        return figure

    def _repr_html_(self) -> str:
        document = self.table_document()
        rows = [flat_row(row) for row in rows_of(document)]
        best = document["best"]
        rows = sweep_for_people(rows, best and rows[best["row"]])
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = table_html(names, ([row.get(name) for name in names] for row in rows))
        return table + picture_html(self.plot)

    def frame(self) -> Any:
        """Return the table as a pandas DataFrame, if pandas is installed."""
        return needed("pandas", "frames").DataFrame(self.table())

    def add(
        self, points: Mapping[str, Any], *, idempotency_key: str | None = None, **how: Any
    ) -> Json:
        """Add points: a grid, as for `Client.sweep`."""
        body = {**points_of(points), **how}
        return self._client._once(f"{self._path}/points", body, idempotency_key)

    def cancel(self) -> Json:
        """Request the cancellation of all its experiments."""
        return self._client._call("POST", f"{self._path}:cancel", idempotent=True)

    def retry(self) -> int:
        """Compute failed and cancelled points again, as many as you may have; return their
        number."""
        count, more = 0, True
        while more:  # a request retries as many as it may store
            try:
                again = self._client._call("POST", f"{self._path}:retry", idempotent=True)
            except Refused as refusal:
                if count and refusal.reason == "limit_reached":
                    break
                raise
            count, more = count + again["count"], again.get("more", False)
        return count

    def delete(self) -> None:
        """Delete it with the experiments that were created for it."""
        self._client._call("DELETE", self._path)

    def __repr__(self) -> str:
        return f"<Sweep {self.id}>"


def points_of(points: Mapping[str, Any]) -> Json:
    """Return a grid by the fields' paths; its values may be any iterable of JSON values. Raises
    ValueError for a single value or a text."""
    for path, values in points.items():
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            advice = f"give a list of values, such as [{values!r}] or range(1, 10), not {values!r}"
            raise ValueError(f"{path}: {advice}")
    return {"grid": {path: list(values) for path, values in points.items()}}


def rows_of(document: Json) -> list[Json]:
    """Return the rows of the service's table that are means over all seeds."""
    rows: list[Json] = document["pooled"] or document["items"]
    return rows


def run_of(document: Json, row: int) -> str:
    """Return the id of an experiment of a row of `rows_of`."""
    fields = rows_of(document)[row]["fields"].items()
    points = document["items"]
    return str(next(one["experiment_id"] for one in points if fields <= one["fields"].items()))


def flat_row(row: Json) -> Json:
    """Return a row of the service's table with a column for each field, metric and error."""
    heads = ("point", "experiment_id", "status", "points")
    flat: Json = {name: row[name] for name in heads if name in row} | row["fields"]
    for name, metric in row["metrics"].items():
        flat |= {
            name: metric["value"],
            f"{name} std_err": metric["std_err"],
            f"{name} count": metric["count"],
        }
    return flat

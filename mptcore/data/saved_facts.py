"""Facts on the data that a run saves. In a weights file: their columns, their shift and scale, and
which observations of an upload were held out. In its tables: the ids of the rows."""

import csv
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mptcore.data.dataset import Dataset, Scaling
from mptcore.protocol.records import Artifact, RunError
from mptcore.runtime.artifacts import keep
from mptcore.runtime.tensor_files import load_weights
from mptcore.specs.vectors import DataSource, MeasuredData, UploadData

CENTER, SCALE, HELDOUT_ROWS = "data/center", "data/scale", "data/heldout_rows"
"""Names of the tensors: float64 (D,) or (1,), and int64 (H,), counted from 0."""
COLUMNS = "columns"
MAX_NAMED = 20
"""Maximum number of columns that are named."""


def facts_of(data: Dataset, spec: DataSource) -> Mapping[str, Tensor]:
    """Return the tensors of the data that are saved beside a model's own."""
    tensors: dict[str, Tensor] = {}
    if data.scaling is not None:
        tensors |= {CENTER: data.scaling.center, SCALE: data.scaling.scale}
    if data.heldout_rows is not None and isinstance(spec, UploadData):
        tensors[HELDOUT_ROWS] = data.heldout_rows
    return tensors


def header_of(data: Dataset) -> Mapping[str, str]:
    """Return the part of a weights file's header with the names of the columns, if they have
    any."""
    return {} if data.columns is None else {COLUMNS: json.dumps([*data.columns])}


def refuse_other_columns(
    family: str, experiments: Iterable[str | None], columns: Sequence[str] | None
) -> None:
    """Raises RunError if a model was fitted to columns of other names, or in another order, than
    these. Columns without names are not compared."""
    for experiment in experiments:
        saved = None if experiment is None else load_weights(family, experiment)[1].get(COLUMNS)
        if saved is None or columns is None or json.loads(saved) == [*columns]:
            continue
        fitted = ", ".join(json.loads(saved)[:MAX_NAMED])
        detail = f"has a model of other columns, or of another order: give data.columns {fitted}"
        more = " …" if len(json.loads(saved)) > MAX_NAMED else ""
        raise RunError("invalid", f"experiment {experiment} {detail}{more}")


def unnamed_columns_warning(
    family: str, experiments: Iterable[str | None], columns: Sequence[str] | None
) -> str | None:
    """Return a sentence if either the data or those of a fitted model have no names of columns, so
    that columns are taken in their order."""
    for experiment in experiments:
        if experiment is None:
            continue
        saved = load_weights(family, experiment)[1].get(COLUMNS)
        if (saved is None) == (columns is None):
            continue
        names = [*columns] if columns is not None else json.loads(saved or "[]")
        listed = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
        without = f"the data of experiment {experiment}" if columns is not None else "these data"
        return f"{without} have no names of columns: the columns are taken in this order: {listed}"
    return None


def load_scaling(
    family: str, experiments: Iterable[str | None], spec: DataSource
) -> Scaling | None:
    """Return the shift and scale of the data that the first of these experiments, if any, trained
    or fitted a model to. Raises RunError if only its data were standardized."""
    for experiment in experiments:
        tensors = {} if experiment is None else load_weights(family, experiment)[0]
        if SCALE not in tensors:
            continue
        if not (isinstance(spec, MeasuredData) and spec.standardize):
            detail = "has a model of standardized data: set data.standardize as there"
            raise RunError("invalid", f"experiment {experiment} {detail}")
        return Scaling(tensors[CENTER], tensors[SCALE])
    return None


HELDOUT_FILE = "heldout_rows.csv"
ROW = "row"
"""Column with the place of an observation in the source, from 0."""


def id_columns(
    ids: Mapping[str, Sequence[str]] | None, others: Collection[str]
) -> dict[str, Sequence[str]]:
    """Return the id columns of a file with `others` by their names there: `_id` is added to the
    name of one of the others, and to an empty name."""
    ids = ids or {}
    columns: dict[str, Sequence[str]] = {}
    for column, values in ids.items():
        name = column
        while not name or name in others or (name != column and name in {*ids, *columns}):
            name += "_id"
        columns[name] = values
    return columns


def save_heldout_rows(data: Dataset, folder: Path | None) -> Artifact | None:
    """Write the row numbers and ids of held-out observations under `folder`, if there are any."""
    if folder is None or data.heldout_rows is None or data.ids is None:
        return None
    rows = data.heldout_rows.tolist()
    ids = id_columns(data.ids, [ROW])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((ROW, *ids))
    writer.writerows(zip(rows, *([v[row] for row in rows] for v in ids.values()), strict=True))
    content = text.getvalue().encode()
    return keep(folder, HELDOUT_FILE, "text/csv", lambda: [content])

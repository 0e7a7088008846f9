"""Ids of rows in the files of a run: the columns of an upload that name its observations."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mptcore.data.dataset import Dataset
from mptcore.protocol.records import Artifact
from mptcore.runtime.artifacts import keep

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


def keep_heldout_rows(data: Dataset, folder: Path | None) -> Artifact | None:
    """Write the places and ids of the held-out observations under `folder`, if there are any."""
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

"""Scores of texts: the rows of a run's table, and the spec that scores some texts."""

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mptlab.curves import needed, table_html
from mptlab.errors import Json
from mptlab.specs import plain
from mptlab.text_tables import TextTable, is_missing, joined

MAX_LINES, MAX_CHARACTERS, MAX_TEXT = 10_000, 200_000, 100_000
"""Maximum texts in a spec, and characters of all and of each. More are uploaded."""
OF_COLUMNS = ("group_column", "category_column", "label_column", "prefix_column")
"""Options of a score that name a column of the table."""
SHOWN = 50
"""Rows in a notebook."""
TEXT_COLUMN = "text"
"""Column of the texts in an upload, unless the table has another name for it."""
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
"""The letters of the 20 standard amino acids."""


class Texts(list[Json]):
    """Rows of an experiment's table of texts, each with its `row`, `text`, counts and scores.
    `columns` has the names of the columns in order, and `notes` what was read and the warnings of
    the run."""

    def __init__(
        self, rows: Iterable[Json] = (), columns: Sequence[str] = (), experiment_id: str = ""
    ):
        super().__init__(rows)
        self.columns = list(columns)
        self.experiment_id = experiment_id
        self.notes: list[str] = []
        self.index: Any = None
        """Index of the DataFrame or Series that had the texts, if one had."""

    def add(self, table: TextTable) -> None:
        """Add the other columns of the scored table, and its index."""
        self.columns += joined(self, self.columns, table).values()
        self.index = table.index

    def by_column(self) -> Json:
        """Return the table as columns by name."""
        return {name: [row[name] for row in self] for name in self.columns}

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each text, and the index that the texts had."""
        return needed("pandas", "frames").DataFrame(self.by_column(), index=self.index)

    def _repr_html_(self) -> str:
        rows = ([row[name] for name in self.columns] for row in self[:SHOWN])
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return table_html(self.columns, rows) + notes


def single_mutations(wild_type: str, letters: str = AMINO_ACIDS) -> list[str]:
    """Return all changes of one letter of a wild type, such as A24G, to score with `wild_type`."""
    return [
        f"{old}{place}{new}"
        for place, old in enumerate(wild_type, 1)
        for new in letters
        if new != old
    ]


def score_spec(
    table: TextTable,
    model: str | Json,
    upload: Callable[[Path], Json],
    compute: Json | None,
    **options: Any,
) -> Json:
    """Return the spec of an experiment that scores texts. Many texts are uploaded first, and so are
    empty ones and those with columns that the options name. Raises ValueError."""
    names = [options[name] for name in OF_COLUMNS if options.get(name) is not None]
    source: Json = {"lines": list(table.texts)}
    lengths = [*map(len, table.texts)]
    is_large = len(lengths) > MAX_LINES or sum(lengths) > MAX_CHARACTERS
    if is_large or not all(0 < length <= MAX_TEXT for length in lengths) or names:
        source = _uploaded(table, names, upload)
    if isinstance(model, str):
        model = {"family": "masked_lm", "checkpoint": model}
    spec: Json = {
        "model": model,
        "data": {"source": "text", **source},
        "evaluate": {"texts": options},
    }
    return spec | ({"compute": compute} if compute else {})


def _plain(value: Any) -> Any:
    """Return a value that JSON has: of a date its text."""
    try:
        return plain(value)
    except TypeError:
        return str(value)


def _uploaded(table: TextTable, names: Sequence[str], upload: Callable[[Path], Json]) -> Json:
    """Upload the texts and these columns, and return the source of the spec. Raises ValueError."""
    column = table.column or TEXT_COLUMN
    columns = {**table.columns, column: [text if text.strip() else None for text in table.texts]}
    if unknown := [name for name in names if name not in columns]:
        raise ValueError(f"the texts have no column {unknown[0]}; they have {', '.join(columns)}")
    kept = dict.fromkeys([column, *names])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "texts.jsonl")
        with file.open("w", encoding="utf-8") as lines:
            for cells in zip(*(columns[name] for name in kept), strict=True):
                values = [None if is_missing(cell) else cell for cell in cells]
                row = dict(zip(kept, values, strict=True))
                lines.write(json.dumps(row, default=_plain, allow_nan=False) + "\n")
        source: Json = {"dataset": upload(file)["id"]}
    return source if column == TEXT_COLUMN else {**source, "column": column}

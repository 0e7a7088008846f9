"""Scores of texts: the rows of a run's table, and the spec that scores some texts."""

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mptlab.curves import needed, table_html
from mptlab.errors import Json

MAX_LINES, MAX_CHARACTERS = 10_000, 200_000
"""Maximum texts and characters in a spec. More texts are uploaded."""
SHOWN = 50
"""Rows in a notebook."""
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
"""The letters of the 20 standard amino acids."""


class Texts(list[Json]):
    """Rows of an experiment's table of texts, each with its `row`, `text`, counts and scores.
    `columns` has the names of the columns in order."""

    def __init__(
        self, rows: Iterable[Json] = (), columns: Sequence[str] = (), experiment_id: str = ""
    ):
        super().__init__(rows)
        self.columns = list(columns)
        self.experiment_id = experiment_id

    def by_column(self) -> Json:
        """Return the table as columns by name."""
        return {name: [row[name] for row in self] for name in self.columns}

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each text."""
        return needed("pandas", "frames").DataFrame(self.by_column())

    def _repr_html_(self) -> str:
        rows = ([row[name] for name in self.columns] for row in self[:SHOWN])
        return table_html(self.columns, rows)


def single_mutations(wild_type: str, letters: str = AMINO_ACIDS) -> list[str]:
    """Return all changes of one letter of a wild type, such as A24G, to score with `wild_type`."""
    return [
        f"{old}{place}{new}"
        for place, old in enumerate(wild_type, 1)
        for new in letters
        if new != old
    ]


def score_spec(
    texts: Sequence[str],
    model: str | Json,
    upload: Callable[[Path], Json],
    compute: Json | None,
    **options: Any,
) -> Json:
    """Return the spec of an experiment that scores texts. Many texts are uploaded first."""
    source: Json = {"lines": list(texts)}
    if len(texts) > MAX_LINES or sum(map(len, texts)) > MAX_CHARACTERS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "texts.jsonl")
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            source = {"dataset": upload(file)["id"]}
    if isinstance(model, str):
        model = {"family": "masked_lm", "checkpoint": model}
    spec: Json = {
        "model": model,
        "data": {"source": "text", **source},
        "evaluate": {"texts": options},
    }
    return spec | ({"compute": compute} if compute else {})

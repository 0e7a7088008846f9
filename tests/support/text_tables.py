"""Tables of scores of texts, as runs leave them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.experiments.models import Artifact
from service.records.texts import FILE


def stored_table(folder: Path, rows: Sequence[dict[str, Any]], experiment_id: str) -> Artifact:
    """Write a table into the folder of a first attempt, and return its record."""
    folder.mkdir(parents=True, exist_ok=True)
    content = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    (folder / FILE).write_bytes(content)
    return Artifact(
        experiment_id=experiment_id,
        file=FILE,
        attempt=1,
        seq=2,
        media_type="application/jsonl",
        sha256=hashlib.sha256(content).hexdigest(),
    )

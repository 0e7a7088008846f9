"""The whole contract of the API, compared with the recorded one: clients rely on each part of it.
`MPT_RECORD_OPENAPI=1` records it again."""

import difflib
import json
import os
from pathlib import Path

from service.app import create_app
from service.settings import Settings

SNAPSHOT = Path(__file__).parents[2] / "openapi.json"
ADVICE = (
    "The OpenAPI document has changed. If it should, record it and add a line for each difference "
    "to CHANGELOG.md: MPT_RECORD_OPENAPI=1 .venv/bin/pytest tests/service/web/test_openapi.py"
)


def test_the_contract_equals_the_recorded_one(settings: Settings) -> None:
    document = create_app(settings).openapi()
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("MPT_RECORD_OPENAPI") == "1":
        SNAPSHOT.write_text(text)
    recorded = SNAPSHOT.read_text().splitlines()
    difference = [*difflib.unified_diff(recorded, text.splitlines(), "recorded", "now", n=2)]
    assert not difference, "\n".join([ADVICE, *difference])

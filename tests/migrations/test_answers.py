"""The API gives the answers that it gave before a migration."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.operations import backup
from service.operations.prepare import prepare
from service.settings import Settings
from service.vocabulary import TERMINAL
from tests.migrations.record import EXPERIMENTS, answers
from tests.support.archived_labs import empty_lab, put_in_place, unpack

CHANGES = {"queue", "last_used_at", "spec"}
"""Fields that depend on the time and on earlier requests, and specs, which later versions show
without the options that are gone."""


def differences(recorded: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield the recorded values that are gone or changed. Further fields are no difference."""
    match recorded, now:
        case dict(), dict():
            for name in recorded.keys() - CHANGES:
                yield from differences(recorded[name], now.get(name), f"{path}/{name}")
        case list(), list() if len(recorded) == len(now):
            for number, (value, other) in enumerate(zip(recorded, now, strict=True)):
                yield from differences(value, other, f"{path}/{number}")
        case _ if recorded != now:
            yield f"{path}: {recorded} is now {now}"


def compare(folder: Path, settings: Settings, without: str = "^$") -> None:
    """Compare the recorded answers with those of a lab, but for paths of a pattern."""
    recorded = json.loads((folder / "answers.json").read_text())
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(settings), headers={"Authorization": f"Bearer {key}"}) as api:
        now = dict(answers(api.get))
        ann = {"Authorization": f"Bearer {(folder / 'key-of-ann').read_text()}"}
        assert api.get("/v1/me", headers=ann).json()["name"] == "ann"
    compared = {path: answer for path, answer in recorded.items() if not re.search(without, path)}
    assert len(compared) > len(recorded) / 3
    assert list(differences(compared, now)) == []


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    return unpack("revision_0050", kind, tmp_path / "backup")


@pytest.fixture
def empty(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    return empty_lab(kind, tmp_path / "store", request, monkeypatch)


def test_a_store_reads_the_same_after_a_migration(folder: Path, empty: Settings) -> None:
    put_in_place(folder, empty)
    prepare(empty)
    compare(folder, empty)


def test_a_backup_reads_the_same_after_a_restore(folder: Path, empty: Settings) -> None:
    """But for experiments that had not ended: they are queued for a later attempt."""
    assert backup.restore(empty, folder) == []
    recorded = json.loads((folder / "answers.json").read_text())
    rows = recorded[EXPERIMENTS]["items"]
    unfinished = [row["id"] for row in rows if row["status"] not in TERMINAL]
    compare(folder, empty, "|".join([re.escape(EXPERIMENTS), "/v1/audit", *unfinished]))

"""A short form of `make fuzz`, and a check that it detects errors."""

from pathlib import Path

import pytest

from service.settings import Settings
from tests.fuzz.campaign import run, target


@pytest.mark.slow
def test_bad_requests_cause_no_server_error(settings: Settings, tmp_path: Path) -> None:
    with target(settings, tmp_path / "log") as aim:
        outcome = run(aim, 700, seed=1)
    assert outcome.defects == []
    assert outcome.requests == 700
    kinds = {(status or 0) // 100 for status in outcome.statuses}
    assert {2, 4} <= kinds, "some are taken, and some refused"

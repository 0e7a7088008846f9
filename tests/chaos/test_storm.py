"""The storm's short form, with servers of its own: they are restarted under it."""

from pathlib import Path

import pytest

from service.settings import Settings
from tests.chaos.plan import SHORT
from tests.chaos.storm import Storm, summary
from tests.support.servers import PostgreSQL, Redis


@pytest.mark.slow
def test_short_storm(lab: Settings, postgresql: PostgreSQL, redis: Redis, tmp_path: Path) -> None:
    storm = Storm(lab, postgresql, redis, SHORT, tmp_path / "lab.log")
    counts, zeros = storm.run()
    print(summary(storm.tally, counts, zeros))
    assert counts.experiments > 0
    assert counts.clean, str(counts)
    assert not any(zeros.values()), zeros

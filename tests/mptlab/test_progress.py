"""Progress of experiments and sweeps: a bar in a terminal, else lines."""

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from mptlab.progress import shown_progress


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def shown(*looks: dict[str, Any], terminal: bool = True) -> str:
    """Return the last line that is displayed for an experiment."""
    screen = Screen() if terminal else io.StringIO()
    with shown_progress(screen) as show:
        for look in looks:
            show({"id": "a", "name": None, **look})
    return screen.getvalue()


def test_the_progress_bar_shows_the_share_that_is_done() -> None:
    progress = {"done": 30, "total": 120, "unit": "masks"}
    bar = shown({"status": "queued", "progress": None}, {"status": "running", "progress": progress})
    assert "queued" in bar
    assert " 25% |" in bar.rpartition("running")[2]
    assert "30/120 masks" in bar.rpartition("running")[2]
    assert "1/4 points" in shown({"status": "running", "progress": progress, "points": 4})


def test_a_plain_progress_line_shows_the_remaining_time() -> None:
    """Check an experiment and a sweep; a line is printed for each tenth."""
    end = (datetime.now(UTC) + timedelta(seconds=90)).isoformat()
    progress = {"done": 30, "total": 120, "unit": "masks"}
    running = {"status": "running", "terminal": False}
    run = running | {"progress": {**progress, "estimated_end": end}}
    sweep = running | {"progress": progress, "estimated_end": end, "points": 4}
    for one, what in ((run, "120 masks"), (sweep, "4 points")):
        line = shown(one, one, terminal=False)
        assert re.fullmatch(rf"a  running  20 % of {what}, about 0:01:\d\d left\n", line)
    unknown = running | {"progress": {**progress, "estimated_end": None}}
    overdue = running | {"progress": {**progress, "estimated_end": "2026-01-31T12:00:00Z"}}
    ended = {**sweep, "status": "failed", "terminal": True}
    for one in (unknown, overdue):
        assert shown(one, terminal=False) == "a  running  20 % of 120 masks\n"
    assert shown(ended, terminal=False) == "a  failed  20 % of 4 points\n"
    whole = {**ended, "progress": {**progress, "done": 120}}
    assert shown(whole, terminal=False) == "a  failed  100 % of 4 points\n"
    unknown_total = {**ended, "progress": {**progress, "total": 0}}
    assert shown(unknown_total, {**ended, "progress": None}, terminal=False) == "a  failed\n"

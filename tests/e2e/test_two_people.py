"""Two people share a server of real processes: one floods it, the other's run starts at once."""

from contextlib import suppress
from pathlib import Path

import pytest

from mptlab import Client, Refused
from service.accounts.users import ensure_key
from service.db.engine import Database
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import lab_processes, wait_until

RUN = ppca_spec(data__dim=60, evaluate__masks__per_size=1000)
FLOOD = 40


@pytest.mark.slow
def test_a_user_with_few_experiments_is_not_starved(lab: Settings, tmp_path: Path) -> None:
    second_key = tmp_path / "key"
    database = Database(lab.url)
    with database.transaction() as session:
        ensure_key(session, "second", second_key)
    with lab_processes(lab) as running, running.client() as flooder:
        mine = [flooder.submit(RUN, cache=False, priority=100)["id"] for _ in range(FLOOD)]
        wait_until(lambda: flooder.get(mine[0])["status"] == "succeeded")
        with Client(flooder.url, second_key.read_text().strip()) as other:
            theirs = other.submit(RUN, cache=False, priority=-100)["id"]
            ended = other.wait(theirs, timeout_s=120)
            assert ended["status"] == "succeeded"
            assert other.queue()["share"]["raw_usage"] > 0
        runs = [flooder.get(one) for one in mine]
        between = [
            one
            for one in runs
            if one["started_at"] and ended["created_at"] <= one["started_at"] < ended["started_at"]
        ]
        assert len(between) <= 1  # that which was on its way by then
        assert sum(one["status"] == "queued" for one in runs) > FLOOD / 4
        for one in mine:
            with suppress(Refused):  # those that have ended
                flooder.cancel(one)
    database.close()

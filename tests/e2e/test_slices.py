"""Two users share one worker: the long run of the first gives way to that of the second."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from mptlab import Client
from service.accounts.users import ensure_key
from service.db.engine import Database
from service.settings import Settings
from tests.support.invariants import check
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import embedded_service, wait_until
from tests.support.undisturbed import undisturbed_records

pytestmark = pytest.mark.slow

LONG = ppca_spec(data__dim=60, evaluate__masks__per_size=200_000)
"""It takes tens of seconds on any machine, and the test cancels it."""
SHORT = ppca_spec(data__dim=20, evaluate__masks__per_size=200)


def test_a_long_run_gives_way_and_resumes(prepared_store: Path, tmp_path: Path) -> None:
    store = shutil.copytree(prepared_store, tmp_path / "store")
    settings = Settings(store=store, database_url=None)
    with closing(Database(settings.url)) as database:
        with database.transaction() as session:
            ensure_key(session, "bob", tmp_path / "bob")
        with (
            embedded_service(settings, tmp_path / "log", MPT_SHARE__SLICE_S="1") as lab,
            lab.client() as ann,
            Client(ann.url, (tmp_path / "bob").read_text().strip()) as bob,
        ):
            long = ann.submit(LONG)["id"]
            wait_until(lambda: has_progressed(ann, long))
            short = bob.submit(SHORT, name="a short one")["id"]
            assert bob.wait(short, timeout_s=240)["status"] == "succeeded"
            wait_until(lambda: ann.get(long)["attempt"] == 2 and has_progressed(ann, long))
            ann.cancel(long)
            assert ann.wait(long, timeout_s=240)["status"] == "cancelled"
            told = [event["data"].get("message") or "" for event in ann.events_of(long)]
            assert any(message.startswith("gave way to bob's run after 0:00 h") for message in told)
        counts = check(database, {short: undisturbed_records(SHORT)})
        assert counts.clean, str(counts)


def has_progressed(client: Client, experiment: str) -> bool:
    return client.get(experiment)["progress"] is not None

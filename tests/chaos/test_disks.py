"""Disks that are really full or read-only: the answers while they are full, and the recovery once
there is space. Needs the right to mount, so `make chaos` runs it, not `make test`."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from mptlab import Client, Refused
from service.db.engine import Database
from service.experiments.models import Attempt
from service.operations.prepare import prepare
from service.settings import Settings
from service.vocabulary import TERMINAL
from tests.support.disks import Disk, DiskUnavailable
from tests.support.invariants import Counts, check
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, environment, start_fresh, wait_until
from tests.support.servers import PostgreSQL, Redis
from tests.support.undisturbed import TRAINING, undisturbed_records

LONG = {**TRAINING, "seeds": list(range(1, 31))}
"""Several seconds of one core, with a checkpoint every half second."""
POINTS = ppca_spec(data__dim=60, evaluate__masks__per_size=60_000, seeds=[1, 2, 3])
"""Many seconds of one core, without a file."""
START_TIMEOUT_S = 300
RESERVE_BYTES = 16 << 20
"""Reserve of the small disk in the lab."""

pytestmark = [pytest.mark.mounts, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def disks() -> Iterator[list[Disk]]:
    """Two disks. Their folder is open to the user that PostgreSQL runs as."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        mounted: list[Disk] = []
        try:
            for name in ("database", "store"):
                mounted.append(Disk(Path(folder), name, 200))
            yield mounted
        except DiskUnavailable as error:
            pytest.skip(str(error))
        finally:
            for disk in mounted:
                disk.detach()


@pytest.fixture(scope="module")
def store_disk(disks: list[Disk]) -> Disk:
    return disks[1]


@pytest.fixture(scope="module")
def database_disk(disks: list[Disk]) -> Disk:
    return disks[0]


@pytest.fixture(scope="class")
def served(store_disk: Disk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`mpt serve` with its store on a disk."""
    settings = Settings(store=store_disk.folder / "served", database_url=None)
    prepare(settings)
    lab = Lab(settings, tmp_path_factory.mktemp("served") / "log")
    try:
        start_served(lab)
        yield lab
    finally:
        lab.stop()


def start_served(lab: Lab) -> None:
    lab.start("serve", "serve", "--port", str(lab.port), MPT_RESERVE_BYTES="0")
    wait_until(lambda: is_ready(lab), START_TIMEOUT_S, "readiness")


@pytest.fixture(scope="class")
def servers(
    database_disk: Disk, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PostgreSQL, Redis]]:
    """A PostgreSQL server with its data on a disk."""
    postgresql = PostgreSQL(database_disk.folder, "-c fsync=on")  # this disk loses unwritten data
    redis = Redis(tmp_path_factory.mktemp("redis"))
    postgresql.start()
    redis.start()
    postgresql.create("lab")
    try:
        yield postgresql, redis
    finally:
        redis.stop()
        postgresql.stop()


@pytest.fixture(scope="class")
def lab(
    servers: tuple[PostgreSQL, Redis], store_disk: Disk, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """The processes of a lab: the database on one disk, the store on another."""
    postgresql, redis = servers
    settings = Settings(
        store=store_disk.folder / "lab",
        database_url=postgresql.url("lab"),
        redis_url=redis.new_url(),
    )
    prepare(settings)
    lab = Lab(settings, tmp_path_factory.mktemp("lab") / "log")
    try:
        lab.start_all(MPT_RESERVE_BYTES=str(RESERVE_BYTES))
        wait_until(lambda: is_ready(lab), START_TIMEOUT_S, "readiness")
        yield lab
    finally:
        lab.stop()


def readiness(lab: Lab) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{lab.port}/readyz", timeout=120)


def is_ready(lab: Lab) -> bool:
    try:
        return readiness(lab).status_code == 200
    except httpx.TransportError:
        return False


def submit(lab: Lab) -> httpx.Response:
    headers = {"Authorization": f"Bearer {lab.settings.key_file.read_text().strip()}"}
    body = {"spec": TRAINING, "note": 9000 * "x", "cache": False}
    address = f"http://127.0.0.1:{lab.port}/v1/experiments"
    return httpx.post(address, json=body, headers=headers, timeout=120)


def refused(lab: Lab, reason: str) -> tuple[httpx.Response, list[str]]:
    """Submit until a submission is refused for a reason. Return the answer, and the ids of the
    submissions accepted before it, which used free pages."""
    accepted: list[str] = []
    answers: list[httpx.Response] = []

    def is_refused() -> bool:
        answers.append(submit(lab))
        if answers[-1].status_code == 202:
            accepted.append(answers[-1].json()["id"])
            return False
        assert answers[-1].json()["reason"] == reason, answers[-1].text
        return True

    wait_until(is_refused, what=f"an answer of {reason}")
    return answers[-1], accepted


def begin(client: Client) -> str:
    """Submit the long experiment, and wait until it has records."""
    experiment_id: str = client.submit(LONG, cache=False)["id"]
    wait_until(lambda: bool(client.get(experiment_id)["metrics"]), what="the run's records")
    return experiment_id


def require_all(
    lab: Lab,
    client: Client,
    long: str,
    short: list[str],
    long_spec: dict[str, Any] = LONG,
    short_spec: dict[str, Any] = TRAINING,
) -> None:
    """Wait for the ends of experiments: the long one, and others. Each has the records of an
    undisturbed run, and there are no other ones of these runs."""
    ids = [long, *short]
    wait_until(
        lambda: all(client.get(one)["status"] in TERMINAL for one in ids), 900, "the runs' ends"
    )
    assert {client.get(one)["status"] for one in ids} == {"succeeded"}
    expected = {long: undisturbed_records(long_spec)}
    expected |= dict.fromkeys(short, undisturbed_records(short_spec) if short else [])
    with closing(Database(lab.settings.url)) as database:
        counts = check(database, expected)
    assert counts == Counts(experiments=len(ids), records=counts.records)
    assert counts.records == sum(map(len, expected.values()))


def attempts_of(lab: Lab, experiment_id: str) -> list[tuple[int, str | None]]:
    """The attempts at an experiment, and their outcomes."""
    with closing(Database(lab.settings.url)) as database, database.snapshot() as session:
        query = select(Attempt).where(Attempt.experiment_id == experiment_id)
        rows = session.scalars(query.order_by(Attempt.attempt)).all()
    return [(row.attempt, row.outcome) for row in rows]


def assert_no_traceback(lab: Lab) -> None:
    log = lab.log.read_text()
    assert '"exception"' not in log
    assert "Traceback" not in log


def test_read_only_store(store_disk: Disk, tmp_path: Path) -> None:
    """Each command ends with the reason, and no traceback."""
    settings = Settings(store=store_disk.folder / "unserved", database_url=None)
    prepare(settings)
    log = tmp_path / "log"
    given = environment(settings)
    with store_disk.read_only():
        assert start_fresh(["serve", "--port", "0"], given, log).wait(START_TIMEOUT_S) == 1
        assert "Read-only file system" in log.read_text()
        assert start_fresh(["migrate"], given, log).wait(START_TIMEOUT_S) == 1
        assert "cannot be opened" in log.read_text()
    assert "Traceback" not in log.read_text()
    prepare(settings)


class TestServedStore:
    def test_a_full_disk(self, store_disk: Disk, served: Lab) -> None:
        """Work is refused and readiness says so; a current run continues once there is space."""
        with served.client() as client:
            long = begin(client)
            with store_disk.full():
                answer, accepted = refused(served, "disk_full")
                assert answer.status_code == 507
                ready = readiness(served)
                assert (ready.status_code, ready.json()["reason"]) == (503, "not_writable")
                assert "disk of the database is full" in ready.json()["detail"]
                assert client.get(long)["id"] == long, "reads go on"
            wait_until(lambda: is_ready(served), what="readiness")
            require_all(served, client, long, [*accepted, submit(served).json()["id"]])
        assert "Traceback" not in served.log.read_text()

    def test_disk_becomes_read_only(self, store_disk: Disk, served: Lab) -> None:
        """The kernel found an error of the disk. After a repair and a restart everything
        continues."""
        with served.client() as client:
            long = begin(client)
            store_disk.fail()
            answer, accepted = refused(served, "database_unavailable")
            assert "read-only" in answer.json()["detail"]
            ready = readiness(served)
            assert (ready.status_code, ready.json()["reason"]) == (503, "not_writable")
            assert client.get(long)["id"] == long, "reads go on"
            served.stop()
            store_disk.repair()
            start_served(served)
            require_all(served, client, long, accepted)
        assert "Traceback" not in served.log.read_text()


class TestLab:
    def test_a_full_disk_of_postgresql(
        self, database_disk: Disk, lab: Lab, servers: tuple[PostgreSQL, Redis]
    ) -> None:
        """A current run continues. PostgreSQL itself ends if there is no space for its log."""
        with lab.client() as client:
            long = begin(client)
            with database_disk.full():
                answer, accepted = refused(lab, "disk_full")
                assert answer.status_code == 507
                assert readiness(lab).status_code == 503
            if not (database_disk.folder / "data" / "postmaster.pid").exists():
                servers[0].start()
            wait_until(lambda: is_ready(lab), what="readiness")
            require_all(lab, client, long, accepted)
        assert "Traceback" not in lab.log.read_text()

    def test_read_only_disk_of_postgresql(
        self, database_disk: Disk, lab: Lab, servers: tuple[PostgreSQL, Redis]
    ) -> None:
        """The kernel found an error of the disk: no answer is an internal error. After a repair and
        a restart of PostgreSQL everything continues."""
        with lab.client() as client:
            long = begin(client)
            database_disk.fail()
            answer, accepted = refused(lab, "database_unavailable")
            assert answer.status_code == 503
            assert readiness(lab).status_code == 503
            servers[0].kill()
            database_disk.repair()
            servers[0].start()
            wait_until(lambda: is_ready(lab), what="readiness")
            require_all(lab, client, long, accepted)
        assert "Traceback" not in lab.log.read_text()

    def test_full_disk_of_the_store(self, store_disk: Disk, lab: Lab, tmp_path: Path) -> None:
        """Uploads are refused and leave nothing. A run whose records find no space waits, and
        succeeds once there is space; the upload does so too."""
        data = tmp_path / "a.csv"
        data.write_text("a,b\n" + "1.5,2.5\n" * 200_000)
        with lab.client() as client:
            long = begin(client)
            with store_disk.full():
                with pytest.raises(Refused) as error:
                    client.upload(data)
                assert (error.value.status, error.value.reason) == (507, "disk_full")
                assert is_ready(lab), "the database has another disk"
                wait_until(lambda: "the run waits" in lab.log.read_text(), what="the wait")
                assert client.get(long)["status"] == "running"
                assert client.artifacts(long) == []
                assert list(client.datasets()) == []
            assert client.upload(data)["bytes"] == data.stat().st_size
            require_all(lab, client, long, [])
            assert attempts_of(lab, long) == [(1, "succeeded")]
        assert_no_traceback(lab)

    def test_records_that_find_no_space(self, store_disk: Disk, lab: Lab) -> None:
        """A run that writes no file stands still while its records find no space, and gives those
        of an undisturbed run once there is some."""
        with lab.client() as client:
            run = client.submit(POINTS, cache=False)["id"]
            wait_until(lambda: client.get(run)["progress"] is not None, what="the run's progress")
            with store_disk.full():
                seen: list[Any] = []

                def stands_still() -> bool:
                    time.sleep(3)
                    seen.append(client.get(run)["progress"]["done"])
                    return len(seen) > 2 and seen[-2] == seen[-1]

                wait_until(stands_still, what="a run that stands still")
                assert client.get(run)["status"] == "running"
            require_all(lab, client, run, [], POINTS)
            assert attempts_of(lab, run) == [(1, "succeeded")]
        assert_no_traceback(lab)

    def test_queue_on_a_full_disk_of_the_store(self, store_disk: Disk, lab: Lab) -> None:
        """No run starts, so none fails; the service stays ready and says why. All succeed at their
        first attempt once there is space."""
        spec = {**TRAINING, "seeds": [1]}
        with lab.client() as client:
            with store_disk.full():
                wait_until(lambda: all(one["store_full"] for one in client.workers()))
                ids = [client.submit(spec, cache=False)["id"] for _ in range(60)]
                wait_until(lambda: "disk is full" in str(client.get(ids[0])["queue"]), what="it")
                time.sleep(10)  # in which all failed before workers looked at the disk
                assert {client.get(one)["status"] for one in ids} == {"queued"}
                ready = readiness(lab)
                assert (ready.status_code, len(ready.json()["warnings"])) == (200, 1)
            require_all(lab, client, ids[0], ids[1:], spec, spec)
            assert readiness(lab).json()["warnings"] == []
            assert {attempts_of(lab, one)[-1] for one in ids} == {(1, "succeeded")}
        assert_no_traceback(lab)

    def test_run_that_finds_no_space(self, store_disk: Disk, lab: Lab) -> None:
        """It is handed back after each wait, and fails at the fourth attempt. The next one, with
        space, succeeds."""
        lab.stop()
        lab.start_all(MPT_RESERVE_BYTES="0", MPT_STALL_S="10")
        wait_until(lambda: is_ready(lab), START_TIMEOUT_S, "readiness")
        spec = {**TRAINING, "seeds": [1]}
        with lab.client() as client:
            with store_disk.full():
                run = client.submit(spec, cache=False)["id"]
                wait_until(lambda: client.get(run)["status"] in TERMINAL, 900, "the run's end")
            failure = client.get(run)["failure"]
            assert failure["kind"] == "disk_full"
            assert "its records cannot be written to the store" in failure["message"]
            assert attempts_of(lab, run) == [(number, "disk_full") for number in (1, 2, 3, 4)]
            again = client.submit(spec, cache=False)["id"]
            wait_until(lambda: client.get(again)["status"] in TERMINAL, 900, "the run's end")
            assert client.get(again)["status"] == "succeeded"
        assert_no_traceback(lab)

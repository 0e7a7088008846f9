"""docker-compose.yml under a real Docker engine: the commands of the pages, and the records of runs
whose containers are killed and stopped.

It takes minutes, so that `make chaos` runs it and `make test` does not. It builds the image, whose
base images are pulled where they are not here.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from mptlab import Client, NoAnswer, Refused
from service.db.engine import Database
from service.experiments.models import Experiment
from service.vocabulary import TERMINAL
from service.workers.models import Worker
from tests.support import lm_specs, tiny_lm
from tests.support.compose import FILE
from tests.support.containers import IMAGE, Containers, engine_problem
from tests.support.invariants import Counts, Record, check
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until
from tests.support.undisturbed import TRAINING

LONG = {**TRAINING, "seeds": list(range(1, 61))}
"""Half a minute of one core, with a checkpoint every half second."""
RUN_TIMEOUT_S = 300.0
SERVICES = ("api", "controller", "worker-cpu", "redis", "postgres")
ROWS = "0.3,0.1,0.2\n0.1,0.2,0.3\n0.4,0.5,0.7\n0.7,0.8,0.9\n"
GIB = 2**30
SUSPEND_RUNS = (
    "for one in /proc/[0-9]*; do"
    " grep -q 'warm[_]parent' $one/cmdline && kill -STOP ${one#/proc/}; done"
)

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for MPT_DATA with a language model and a table to upload."""
    folder = tmp_path_factory.mktemp("data")
    tiny_lm.checkpoint(folder / "models" / "tiny")
    (folder / "rows.csv").write_text(ROWS)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Containers]:
    """A project whose image is built from this tree; all of it is removed at the end."""
    problem = engine_problem()
    if problem is not None:
        pytest.skip(problem)
    made = Containers(tmp_path_factory.mktemp("project"), data)
    made.run(["docker", "build", "--tag", IMAGE, "--build-arg", "TORCH=cpu", "."])
    yield made
    made.compose("down", "--volumes")


@pytest.fixture
def client(containers: Containers) -> Iterator[Client]:
    with containers.up() as client:
        yield client


@pytest.fixture(scope="module")
def undisturbed(containers: Containers) -> list[Record]:
    return containers.undisturbed_records(LONG)


def status(client: Client, experiment_id: str) -> dict[str, Any]:
    """The experiment as soon as the API answers; it may have been killed."""
    found: list[dict[str, Any]] = []

    def answers() -> bool:
        try:
            found.append(client.get(experiment_id))
        except (NoAnswer, Refused):
            return False
        return True

    wait_until(answers, RUN_TIMEOUT_S, "the API")
    return found[0]


def begin_long_run(client: Client) -> str:
    """Submit the long run; return its id after its first progress record, when it is running."""
    experiment_id: str = client.submit(LONG, cache=False)["id"]
    wait_until(lambda: bool(client.curves(experiment_id)), RUN_TIMEOUT_S, "the run's progress")
    assert client.get(experiment_id)["status"] == "running"
    return experiment_id


def end(client: Client, experiment_id: str) -> dict[str, Any]:
    """Wait for its end."""
    wait_until(
        lambda: status(client, experiment_id)["status"] in TERMINAL, RUN_TIMEOUT_S, "the run's end"
    )
    return status(client, experiment_id)


def require_undisturbed(
    containers: Containers, experiment_id: str, records: list[Record]
) -> Experiment:
    """Check the stored records and attempts; the experiment's row."""
    with closing(Database(containers.database_url())) as database:
        counts = check(database, {experiment_id: records})
        with database.snapshot() as session:
            row = session.get_one(Experiment, experiment_id)
    assert counts == Counts(experiments=1, records=counts.records)
    assert counts.records > 0
    return row


@pytest.mark.parametrize("name", SERVICES)
def test_a_killed_container_costs_no_record(
    containers: Containers, client: Client, undisturbed: list[Record], name: str
) -> None:
    experiment_id = begin_long_run(client)
    containers.kill(name)
    ended = end(client, experiment_id)
    assert (ended["status"], ended["attempt"]) == ("succeeded", 2 if name == "worker-cpu" else 1)
    row = require_undisturbed(containers, experiment_id, undisturbed)
    assert row.lost == (1 if name == "worker-cpu" else 0)


@pytest.mark.parametrize("command", ["stop", "down", "restart"])
def test_stopping_the_lab_hands_its_run_back(
    containers: Containers, client: Client, undisturbed: list[Record], command: str
) -> None:
    experiment_id = begin_long_run(client)
    containers.compose(command)
    with containers.up() as client:
        ended = end(client, experiment_id)
    assert (ended["status"], ended["attempt"]) == ("succeeded", 2)
    assert require_undisturbed(containers, experiment_id, undisturbed).lost == 0


def test_the_data_folder_is_used(containers: Containers, client: Client, data: Path) -> None:
    """A language model of MPT_DATA, and an upload of a file that lies there."""
    model = client.submit(lm_specs.BASE)["id"]
    dataset = client.upload(data / "rows.csv")["id"]
    upload = {"source": "upload", "dataset": dataset, "n": 4, "dim": 3}
    ppca = {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"}
    rows = client.submit({**ppca_spec(), "data": upload, "model": ppca})["id"]
    for experiment_id in (model, rows):
        ended = end(client, experiment_id)
        assert ended["status"] == "succeeded", ended
    assert "Read-only" in containers.execute("worker-cpu", "touch /data/models/new")


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("name", ["api", "controller", "worker-cpu"])
def test_a_container_hides_its_secrets_and_starts_again_when_it_ends(
    containers: Containers, name: str
) -> None:
    wait_until(
        lambda: "Permission denied" in containers.execute(name, "cat /proc/1/environ"),
        RUN_TIMEOUT_S,
        "a process that hides its environment",
    )
    before = containers.state(name)["StartedAt"]
    containers.execute(name, "kill -TERM 1")
    wait_until(
        lambda: containers.state(name)["StartedAt"] != before, RUN_TIMEOUT_S, "the next start"
    )


@pytest.mark.usefixtures("client")
def test_a_worker_knows_the_memory_limit_of_its_container(containers: Containers) -> None:
    def limits() -> list[int | None]:
        with closing(Database(containers.database_url())) as database:
            with database.snapshot() as session:
                return list(session.scalars(select(Worker.run_memory)))

    wait_until(lambda: limits() == [int(0.9 * 2 * GIB)], RUN_TIMEOUT_S, "the worker's limit")


def commands(heading: str) -> str:
    """The commands for compose in a section of docs/operations.md."""
    page = (FILE.parent / "docs" / "operations.md").read_text()
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (block,) = [
        text for text in re.findall(r"^```sh no-run\n(.*?)^```$", section, re.S | re.M)
        if "docker compose" in text
    ]  # fmt: skip
    assert isinstance(block, str)
    return block


@pytest.fixture
def follow(containers: Containers, tmp_path: Path) -> Callable[[str], str]:
    """Type the commands of a section, with a folder of the test's own for the backup."""

    def run(heading: str) -> str:
        text = commands(heading).replace("/srv/backup", str(tmp_path / "backup"))
        return containers.run(["bash", "-euo", "pipefail", "-c", text])

    return run


@pytest.mark.skipif(os.geteuid() != 0, reason="the backup belongs to the containers' user")
def test_backup_and_restore_with_the_documented_commands(
    containers: Containers, client: Client, undisturbed: list[Record], follow: Callable[[str], str]
) -> None:
    experiment_id = begin_long_run(client)
    containers.execute("worker-cpu", SUSPEND_RUNS)
    follow("Back up")
    assert client.get(experiment_id)["status"] == "running"
    containers.compose("down", "--volumes")
    assert "missing" not in follow("Restore")
    with containers.up() as client:
        ended = end(client, experiment_id)
        assert ended["status"] == "succeeded"
        scores = {
            (one["x"], one["value"])
            for one in undisturbed
            if one["record"] == "point" and one["series"] == "score"
        }
        found = client.curves(experiment_id, "score")
        assert {
            pair for one in found for pair in zip(one["x"], one["value"], strict=True)
        } == scores

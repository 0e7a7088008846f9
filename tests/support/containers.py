"""docker-compose.yml under a Docker engine, as a separate compose project."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import URL

from mptcore.specs import stored_spec
from mptlab import Client, serve
from tests.support.compose import FILE, SECRETS
from tests.support.invariants import Record
from tests.support.processes import wait_until

IMAGE = "mptlab:cpu"
OURS = ("migrate", "api", "controller", "worker-cpu")
TIMES = {"MPT_CHECKPOINT_EVERY_S": "0.5", "MPT_MAX_LOST": "100"}
START_TIMEOUT_S = 180.0


def engine_problem() -> str | None:
    """Return why the containers cannot run here, or None."""
    if shutil.which("docker") is None or _command() is None:
        return "docker and docker compose are not installed"
    asked = subprocess.run(["docker", "info"], capture_output=True, text=True)
    if asked.returncode != 0:
        return f"no Docker engine answers: {asked.stderr.strip()}"
    stages = [line.split()[1] for line in _lines("Dockerfile") if line.startswith("FROM ")]
    bases = [name for name in stages if ":" in name]
    images = [one["image"] for one in yaml.safe_load(FILE.read_text())["services"].values()]
    for image in {*bases, *(name for name in images if not name.startswith("mptlab:"))}:
        if not (_docker("image", "inspect", image) or _docker("pull", "--quiet", image)):
            return f"the image {image} is not here and cannot be pulled"
    return None


def _command() -> list[str] | None:
    """Compose 2, or 1.29 if only that is installed."""
    if _docker("compose", "version"):
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def _docker(*words: str) -> bool:
    return subprocess.run(["docker", *words], capture_output=True).returncode == 0


def _lines(name: str) -> list[str]:
    return (FILE.parent / name).read_text().splitlines()


class Containers:
    """The lab of docker-compose.yml with short times; its database is published for the tests."""

    def __init__(self, folder: Path, data: Path):
        self.port, self.database_port = serve.free_port(), serve.free_port()
        self.folder = folder
        command = _command()
        assert command is not None
        self._command = command
        changes: dict[str, Any] = {name: {"environment": TIMES} for name in OURS}
        changes["worker-cpu"]["cpus"] = 1
        changes["postgres"] = {"ports": [f"127.0.0.1:{self.database_port}:5432"]}
        override = folder / "override.yml"
        override.write_text(yaml.safe_dump({"services": changes}))
        self.environment = {
            **os.environ,
            **SECRETS,
            "COMPOSE_PROJECT_NAME": f"mptlab-test-{os.getpid()}",
            "COMPOSE_FILE": f"{FILE}:{override}",
            "MPT_PUBLISH": f"127.0.0.1:{self.port}",
            "MPT_DATA": str(data),
            "MPT_WORKER_MEMORY": "2g",
        }
        if command == ["docker-compose"]:  # the documented commands are for Compose 2
            programs = folder / "bin"
            programs.mkdir()
            text = '#!/bin/sh\n[ "$1" = compose ] && shift && exec docker-compose "$@"\n'
            (programs / "docker").write_text(f'{text}exec {shutil.which("docker")} "$@"\n')
            (programs / "docker").chmod(0o755)
            self.environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def compose(self, *words: str) -> str:
        """Run a command of compose; its output."""
        return self.run([*self._command, *words])

    def run(self, command: list[str], text: str | None = None) -> str:
        """Run a command in this project's environment; its output."""
        done = subprocess.run(
            command, env=self.environment, cwd=FILE.parent, input=text, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self) -> Client:
        """Start all services; a client for the API, once it is ready."""
        self.compose("up", "--detach", "--no-build")
        key = self.compose("exec", "-T", "api", "cat", "/var/lib/mptlab/api-key").strip()
        client = Client(f"http://127.0.0.1:{self.port}", key)
        wait_until(client.is_ready, START_TIMEOUT_S, "the API")
        return client

    def kill(self, name: str) -> None:
        """Kill all processes of a container by SIGKILL and start it again."""
        self.compose("kill", "-s", "KILL", name)
        self.compose("start", name)

    def execute(self, name: str, script: str) -> str:
        """Run a shell script in a container; its output, errors included."""
        return self.compose("exec", "-T", name, "sh", "-c", f"({script}) 2>&1 || true")

    def state(self, name: str) -> dict[str, Any]:
        """Return the state of a service's container as reported by the engine."""
        container = self.compose("ps", "--all", "--quiet", name).split()[0]
        (found,) = json.loads(self.run(["docker", "inspect", container]))
        state: dict[str, Any] = found["State"]
        return state

    def database_url(self) -> str:
        """Address of the published database."""
        return URL.create(
            "postgresql+psycopg", "mptlab", SECRETS["MPT_POSTGRES_PASSWORD"], "127.0.0.1",
            self.database_port, "mptlab",
        ).render_as_string(hide_password=False)  # fmt: skip

    def undisturbed_records(self, spec: Mapping[str, Any]) -> list[Record]:
        """All numbered records of the filter, run in the image, whose torch may be another."""
        text = json.dumps(stored_spec(spec).model_dump(mode="json"))
        command = ["docker", "run", "--rm", "--interactive", IMAGE, "python", "-m", "mptcore",
                   "--work-dir", "/tmp"]  # fmt: skip
        records = [json.loads(line) for line in self.run(command, text).splitlines()]
        return [one for one in records if one["seq"] is not None]

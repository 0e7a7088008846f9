"""docker-compose.yml as plain processes: its commands and environment on servers of the tests."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

FILE = Path(__file__).parents[2] / "docker-compose.yml"
SECRETS = {"MPT_POSTGRES_PASSWORD": "postgres-secret", "MPT_REDIS_PASSWORD": "redis-secret"}
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*)|:\?[^}]*)\}")


def services() -> dict[str, dict[str, Any]]:
    """The services of the file, its variables replaced by the secrets above or their defaults."""

    def value(found: re.Match[str]) -> str:
        return SECRETS.get(found["name"]) or found["default"]

    services: dict[str, dict[str, Any]] = yaml.safe_load(VARIABLE.sub(value, FILE.read_text()))[
        "services"
    ]
    return services


class Compose:
    """Processes of services. `elsewhere` maps paths in the containers to local ones, and `programs`
    maps names of programs to commands."""

    def __init__(self, log: Path, elsewhere: Mapping[str, str], programs: Mapping[str, list[str]]):
        self.services = services()
        self.log = log
        self.elsewhere = elsewhere
        self.programs = {"python": [sys.executable], **programs}
        self.processes: dict[str, psutil.Popen] = {}

    def start(self, name: str, *more: str) -> psutil.Popen:
        """Start a service by its command in the file; `more` arguments are only for tests."""
        command = [*self._program(self.services[name]["command"]), *more]
        with open(self.log, "ab") as output:
            self.processes[name] = psutil.Popen(
                command, env=self._environment(name), stdout=output, stderr=subprocess.STDOUT
            )
        return self.processes[name]

    def is_healthy(self, name: str, **more: str) -> bool:
        """Run the service's health check once."""
        kind, *check = self.services[name]["healthcheck"]["test"]
        words = ["sh", "-c", *check] if kind == "CMD-SHELL" else self._program(check)
        environment = {**self._environment(name), **more}
        words = [self._here(word) for word in words]
        return subprocess.run(words, env=environment, capture_output=True).returncode == 0

    def stop(self) -> dict[str, int]:
        """Stop all processes, and return their exit statuses. A remaining process is an error."""
        running = {name: p for name, p in self.processes.items() if p.is_running()}
        family = [child for p in running.values() for child in p.children(recursive=True)]
        for process in running.values():
            process.terminate()
        _, alive = psutil.wait_procs([*running.values(), *family], timeout=120)
        for left in alive:
            left.kill()
        assert not alive, f"did not stop: {alive}"
        return {name: process.wait() for name, process in running.items()}

    def _program(self, command: list[str]) -> list[str]:
        name, *arguments = map(self._here, command)
        return [*self.programs.get(name, [name]), *arguments]

    def _environment(self, name: str) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("MPT_")}
        given = self.services[name].get("environment", {})
        return own | {key: self._here(value) for key, value in given.items()}

    def _here(self, text: str) -> str:
        for there, here in self.elsewhere.items():
            text = text.replace(there, here)
        return text

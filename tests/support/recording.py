"""Commands of `mpt` with a client that records its calls, in place of a service."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from mptlab.cli import app
from mptlab.commands import context

ID = "0123456789abcdef0123456789abcdef"


class Recording:
    """A client that records its calls, and returns prepared answers."""

    def __init__(self, **answers: Any):
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, *given, named) if named else (name, *given))
            answer = self.answers.get(name, {"id": ID, "status": "queued"})
            return answer(*given, **named) if callable(answer) else answer

        return call


Typed = Callable[..., tuple[int, str, str]]


def typed_with(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Return a function that runs a command on a recording client, and returns its exit status,
    output and errors."""

    def run(client: Recording, *words: str, text: str | None = None) -> tuple[int, str, str]:
        @contextmanager
        def connected(url: str | None) -> Iterator[Recording]:
            assert url is None
            yield client

        monkeypatch.setattr(context, "connected", connected)
        done = CliRunner().invoke(app, words, input=text, catch_exceptions=False)
        return done.exit_code, done.stdout, done.stderr

    return run


def one_line(text: str) -> str:
    """Return the words of a usage error, which stands in a box."""
    return " ".join(text.replace("│", " ").split())

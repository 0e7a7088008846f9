"""Commands of `mpt` with a client that records its calls, in place of a service."""

from collections.abc import Callable
from typing import Any

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


def one_line(text: str) -> str:
    """Return the words of a usage error, which stands in a box."""
    return " ".join(text.replace("│", " ").split())

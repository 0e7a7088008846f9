"""Each call on an experiment goes to the client with the experiment's own id."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from mptlab import Client, Experiment

DOCUMENT = {"id": "ab", "name": "mine", "status": "succeeded"}


class Recording:
    """A client that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, given, named))
            return {**DOCUMENT, "status": "queued"}

        return call


CALLS: list[tuple[Callable[[Experiment], Any], tuple[str, tuple[Any, ...], dict[str, Any]]]] = [
    (lambda one: one.refresh(), ("get", ("ab",), {})),
    (lambda one: one.events(), ("events_of", ("ab",), {"after": None, "kind": ()})),
    (
        lambda one: one.events(after="7", kind=["log"]),
        ("events_of", ("ab",), {"after": "7", "kind": ["log"]}),
    ),
    (lambda one: one.logs("warning"), ("logs", ("ab", "warning"), {})),
    (lambda one: one.artifacts(), ("artifacts", ("ab",), {})),
    (lambda one: one.rows(), ("rows", ("ab",), {})),
    (lambda one: one.download("x", "a", "b"), ("download", ("ab", "x", "a", "b"), {})),
    (lambda one: one.bundle("x.zip"), ("bundle", ("ab", "x.zip"), {})),
    (lambda one: one.cancel(), ("cancel", ("ab",), {})),
    (lambda one: one.pause(), ("pause", ("ab",), {})),
    (lambda one: one.resume(), ("resume", ("ab",), {})),
    (lambda one: one.retry(), ("retry", ("ab",), {})),
    (lambda one: one.delete(), ("delete", ("ab",), {})),
    (lambda one: one.change(name="new"), ("change", ("ab",), {"name": "new"})),
]


@pytest.mark.parametrize(("ask", "called"), CALLS)
def test_a_call_is_made_with_the_experiments_id(
    ask: Callable[[Experiment], Any], called: tuple[str, tuple[Any, ...], dict[str, Any]]
) -> None:
    client = Recording()
    ask(Experiment(cast(Client, client), DOCUMENT))
    assert client.calls == [called]


def test_changed_fields_are_updated() -> None:
    changes = (Experiment.refresh, Experiment.cancel, Experiment.pause, Experiment.resume)
    for change in (*changes, lambda one: one.change(name="new")):
        one = Experiment(cast(Client, Recording()), DOCUMENT)
        assert change(one) is one
        assert one.status == "queued"

"""Orders of a supervisor, line by line."""

import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from mptcore.protocol.orders import Input, Order, Resume, follow_orders, parse_assignment
from mptcore.specs import (
    Limits,
    SpecError,
    validate_spec,
)
from tests.support.specs import SMALL, line


def test_a_bare_spec_is_an_assignment() -> None:
    found = parse_assignment(line(SMALL))
    assert found.spec == validate_spec(SMALL)
    assert (found.checkpoint_dir, found.work_dir) == (None, None)
    assert (found.resume, found.inputs) == (None, None)
    assert (found.save_every_s, found.environment) == (30.0, {})
    assert parse_assignment(line({"spec": SMALL})) == found


def test_an_envelope_adds_folders_files_and_times() -> None:
    found = parse_assignment(
        line(
            {
                "spec": SMALL,
                "checkpoint_dir": "/a",
                "work_dir": "/b",
                "resume": {"files": ["/c", "/d"], "after": 7},
                "inputs": {"one": {"file": "/e", "sha256": "f"}},
                "save_every_s": 2.5,
                "environment": {"A": "b"},
            }
        )
    )
    assert (found.checkpoint_dir, found.work_dir) == (Path("/a"), Path("/b"))
    assert found.resume == Resume(files=["/c", "/d"], after=7)
    assert found.inputs == {"one": Input(file="/e", sha256="f")}
    assert (found.save_every_s, found.environment) == (2.5, {"A": "b"})
    assert found.spec == validate_spec(SMALL)


def test_the_sender_of_an_envelope_sets_its_limits() -> None:
    large: dict[str, Any] = {**SMALL, "data": {**SMALL["data"], "n": Limits().elements // 4}}
    with pytest.raises(SpecError, match="N · D is at most"):
        parse_assignment(line(large))
    assert parse_assignment(line({"spec": large})).spec.data.n == Limits().elements // 4


@pytest.mark.parametrize(
    ("envelope", "told"),
    [
        ({"checkpoint": "x"}, "/checkpoint: unknown field; allowed here: checkpoint_dir, "),
        ({"save_every_s": 0.0}, "/save_every_s: greater than 0"),
        ({"resume": {"files": []}}, "/resume/after: this field is required"),
        ({"work_dir": 3}, "/work_dir: text, in quotes"),
    ],
)
def test_a_bad_envelope_is_refused_by_its_field(envelope: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_assignment(line({"spec": SMALL, **envelope}))
    assert str(refused.value).startswith(told)


def test_problems_of_a_spec_in_an_envelope_name_the_field_of_the_spec() -> None:
    with pytest.raises(SpecError, match=r"^/seeds: at least 1 items$"):
        parse_assignment(line({"spec": {**SMALL, "seeds": []}}))


def test_orders_are_read_to_the_end_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is not an order is ignored, and the process ends with 1 at the end of the
    input."""
    obeyed: list[tuple[Order, bool]] = []
    ended = threading.Event()
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    lines: list[Any] = [{"no": "order"}, {"checkpoint": "a"}, {"stop": "now"},
                        {"stop": "checkpoint"}]  # fmt: skip
    text = b"no JSON\n" + b"".join(json.dumps(one).encode() + b"\n" for one in lines)
    follow_orders(
        io.BytesIO(text), lambda one: obeyed.append((one, threading.current_thread().daemon))
    )
    assert ended.wait(60)
    assert statuses == [1]
    orders = [Order(checkpoint="a"), Order(stop="checkpoint")]
    assert obeyed == [(one, True) for one in orders]

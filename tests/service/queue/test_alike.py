"""Environments of a run and of its helper, which must give the same bits."""

from typing import Any

import pytest

from service.queue import helping


@pytest.mark.parametrize("part", helping.ALIKE)
def test_environments_differ_in_a_part(part: str) -> None:
    whole: dict[str, Any] = dict.fromkeys(helping.ALIKE, "same")
    assert helping.difference({**whole, "platform": 1}, {**whole, "platform": 2}) is None
    assert helping.difference({**whole, part: "other"}, whole) == part


@pytest.mark.parametrize(
    ("inputs", "part"),
    [({}, None), ({"a": "1"}, None), ({"a": "2"}, "inputs"), ({"c": "1"}, "inputs")],
)
def test_a_helper_reads_the_inputs_of_the_run(inputs: dict[str, str], part: str | None) -> None:
    """Perhaps not all of them yet. The newest weights of a hub, or a file of the data folder, may
    differ between machines."""
    run = {"inputs": {"a": "1", "b": "2"}}
    assert helping.difference({"inputs": inputs}, run) == part

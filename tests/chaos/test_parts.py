"""A part of `make chaos` that did not run is not a pass."""

import os

import pytest

from tests.chaos.__main__ import PARTS, run


@pytest.mark.parametrize(
    ("program", "is_clean", "line"),
    [
        ("print('=== 3 passed ===')", True, "ran"),
        ("print('storm: did not run: no mount'); print('0 lost')", False, "DID NOT RUN: no mount"),
        ("print('2 lost'); exit(3)", False, "FAILED with 3"),
        ("print('3 passed, 1 skipped')", False, "DID NOT RUN"),
    ],
)
def test_the_outcome_of_a_part(program: str, is_clean: bool, line: str) -> None:
    outcome, told = run("part", ("-c", program), {**os.environ})
    assert outcome == is_clean
    assert told.startswith(f"part: {line}")
    assert any(count in told for count in ("3 passed", "0 lost", "2 lost"))


def test_a_part_without_counts_did_not_run() -> None:
    assert run("part", ("-c", "pass"), {**os.environ}) == (
        False,
        "part: DID NOT RUN: it printed nothing",
    )


@pytest.mark.slow
def test_containers_do_not_pass_without_an_engine() -> None:
    """It collects all of the tests' modules."""
    environment = {**os.environ, "PATH": "", "MPT_TEST_REQUIRE_ALL": "1"}
    is_clean, line = run("containers", PARTS["containers"], environment)
    assert not is_clean
    assert "DID NOT RUN: docker and docker compose are not installed" in line

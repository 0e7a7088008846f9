"""The output of commands that wait: results, warnings, outages, interruptions."""

from typing import Any

import pytest

from mptlab import NoAnswer
from mptlab.commands.context import CommandContext, connected
from mptlab.commands.following import comes_back, print_ended, print_warnings, result_lines
from tests.support.recording import Recording, one_line

RESULT = {"name": "mpt", "labels": {}, "title": "mpt", "label": "MPT", "unit": "nats", "count": 1,
          "value": -10.1, "std_err": 0.1, "reason": None, "tokens": None, "before": None,
          "agreement": None, "meaning": ""}  # fmt: skip
"""A row of a summary."""


METRIC = {"name": "mpt", "labels": {"seed": 4, "model": "a"}, "value": -1.5, "std_err": 0.01234,
          "reason": None}  # fmt: skip


def test_how_experiments_ended_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {**METRIC, "labels": {}, "value": None, "std_err": None, "reason": "why"}
    interim = METRIC | {"labels": {"epoch": 0}, "value": -9.0}
    rows = [RESULT | {"label": None, "meaning": "estimates lml"}]
    run = {"id": "a", "name": "n\x1b", "metrics": [interim, METRIC, missing], "summary": rows}
    lines = ["mpt seed=4 model=a -1.500 ± 0.012 estimates lml", "mpt why",
             "mpt epoch=0 -9.000 ± 0.012"]  # fmt: skip
    print_ended([run])
    assert [*map(one_line, capsys.readouterr().out.splitlines())] == lines
    print_ended([run, {"id": "b", "name": None, "metrics": [], "summary": []}])
    assert [*map(one_line, capsys.readouterr().out.splitlines())] == ["a n\ufffd", *lines, "b"]


def test_the_result_is_printed_before_all_metrics() -> None:
    trained = RESULT | {
        "before": {"at": {"epoch": 0}, "value": -57.0, "std_err": 0.5}, "count": 3,
        "agreement": {"outcome": "agree", "text": "they agree", "value": 0.1, "std_err": 0.1},
    }  # fmt: skip
    area = RESULT | {"label": "Area", "value": -956.75, "std_err": None, "tokens": 512}
    missing = RESULT | {"label": "LML", "value": None, "std_err": None, "reason": "not final"}
    rows = [trained, area, missing, RESULT | {"label": None}]
    assert [one_line(line) for line in result_lines({"summary": rows})] == [
        "MPT -10.10 ± 0.10 nats, mean over 3 seeds; they agree: MPT - LML is 0.10 ± 0.10",
        "-57.00 ± 0.50 at epoch 0 → -10.10 ± 0.10",
        "Area -956.75 nats = -1.8687 × 512 tokens",
        "LML not final",
    ]


def test_a_score_without_an_error_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for name, value, error, is_explained in (
        ("mpt", -1.0, 0.1, False),
        ("mpt", None, None, False),
        ("kl", 1.0, None, False),
        ("mpt_heldout", -1.0, None, True),
    ):
        metric = METRIC | {"name": name, "value": value, "std_err": error, "reason": "few"}
        print_ended([{"id": "a", "name": None, "metrics": [metric], "summary": []}])
        assert ("has no error" in capsys.readouterr().err) == is_explained


def test_a_warning_of_some_experiments_has_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warnings = {"a": ["all", "two"], "b": ["all"], "c": ["all", "two", "two"]}
    client: Any = Recording(logs=lambda one, _: [{"message": told} for told in warnings[one]])
    print_warnings(CommandContext(client, False), {"a": "K=1", "b": "K=2", "c": "K=3"})
    assert capsys.readouterr().err == "mpt: all\nmpt: two (K=1; K=3)\n"


def test_an_outage_is_printed_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", "0.3")
    monkeypatch.setenv("MPT_API_KEY", "key")
    with connected("http://127.0.0.1:1") as client, pytest.raises(NoAnswer):
        client.me()
    output, error = capsys.readouterr()
    assert output == ""
    assert "refused" in error


@pytest.mark.parametrize(
    ("command", "ids", "advice"), [("table", "a", "mpt table a"), ("watch", "abcdef", "mpt list")]
)
def test_an_interrupted_wait_says_in_one_line_how_to_resume_it(
    capsys: pytest.CaptureFixture[str], command: str, ids: str, advice: str
) -> None:
    with pytest.raises(KeyboardInterrupt), comes_back(command, [*ids]):
        raise KeyboardInterrupt
    output, error = capsys.readouterr()
    assert (output, error.count("\n")) == ("", 1)
    assert advice in error

"""Output of the commands: tables, metrics, lines; and values as users type them."""

from typing import Any

import pytest
import typer

from mptlab.commands import context
from mptlab.commands.context import cell, connected, print_table
from mptlab.commands.following import (
    comes_back,
    exit_unless_succeeded,
    metric_lines,
    print_ended,
    print_warnings,
    result_lines,
)
from mptlab.commands.reading import _log_line, _told
from mptlab.commands.standings import print_verdict
from mptlab.commands.submitting import MAX_VALUES, _swept, _values
from mptlab.progress import printable
from mptlab.tables import HALF_WIDTH


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (True, "yes"), (False, "no"), (1 / 3, "0.3333333"), (3, "3"), ("x", "x"),
        (12345678.9, "1.234568e+07"), ([1, None], "1,-"), ({"a": True, "b": [2]}, "a=yes b=2"),
    ],
)  # fmt: skip
def test_a_cell_of_a_table(value: Any, text: str) -> None:
    assert cell(value) == text


def test_a_program_reads_lines_that_are_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "long_name", "a.b_c"], [["x" * 300, 1.5, None]])
    header, _, row = (line for line in capsys.readouterr().out.splitlines() if line.strip())
    assert "long name" in header
    assert "a.b_c" in header
    assert row.split() == ["x" * 300, "1.5", "-"]


def test_control_characters_are_not_sent_to_a_terminal() -> None:
    assert printable("a\x1b[31mb\u202e\n") == "a\ufffd[31mb\ufffd\ufffd"


RESULT = {"name": "mpt", "labels": {}, "title": "mpt", "label": "MPT", "unit": "nats", "count": 1,
          "value": -10.1, "std_err": 0.1, "reason": None, "tokens": None, "before": None,
          "agreement": None, "meaning": ""}  # fmt: skip
"""A row of a summary."""
METRIC = {"name": "mpt", "labels": {"seed": 4, "model": "a"}, "value": -1.5, "std_err": 0.01234,
          "reason": None}  # fmt: skip


def test_how_experiments_ended_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {**METRIC, "labels": {}, "value": None, "std_err": None, "reason": "why"}
    told = "sum of the masked scores: estimates lml"
    rows = [RESULT | {"label": None, "meaning": told}]
    one = {"id": "a", "name": "n\x1b", "metrics": [METRIC, missing], "summary": rows}
    lines = [f"{'mpt':16} seed=4 model=a -1.500 ± 0.012        {told}", f"{'mpt':16} {'':12} why"]
    print_ended([one])
    assert capsys.readouterr().out.splitlines() == lines
    print_ended([one, {"id": "b", "name": None, "metrics": [], "summary": []}])
    assert capsys.readouterr().out.splitlines() == ["a  n\ufffd", *lines, "b"]


def test_the_result_is_printed_before_all_metrics() -> None:
    trained = RESULT | {
        "before": {"at": {"epoch": 0}, "value": -57.0, "std_err": 0.5}, "count": 3,
        "agreement": {"outcome": "agree", "text": "they agree", "value": 0.1, "std_err": 0.1},
    }  # fmt: skip
    area = RESULT | {"label": "Area under the curve", "value": -956.75, "std_err": None,
                     "tokens": 512}  # fmt: skip
    missing = RESULT | {"label": "LML", "value": None, "std_err": None, "reason": "not final"}
    rows = [trained, area, missing, RESULT | {"label": None}]
    assert [*result_lines({"summary": rows})] == [
        "MPT                  -10.10 ± 0.10 nats, mean over 3 seeds; "
        "they agree: MPT - LML is 0.10 ± 0.10",
        "                     -57.00 ± 0.50 at epoch 0 → -10.10 ± 0.10",
        "Area under the curve -956.75 nats = -1.8687 × 512 tokens",
        "LML                  not final",
    ]


def test_metrics_of_the_way_are_printed_after_final_ones() -> None:
    metrics = [METRIC | {"labels": {"seed": 4, "epoch": 0}}, METRIC | {"labels": {"seed": 4}}]
    first, second = metric_lines({"metrics": metrics, "summary": [RESULT]})
    assert "epoch=0" not in first
    assert "epoch=0" in second


@pytest.mark.parametrize(("half_width", "told"), [(0.25, [HALF_WIDTH]), (0.0, []), (None, [])])
def test_a_verdict_says_what_its_errors_are(
    half_width: float | None, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    figure = {"what": "rise", "published": 1.0, "measured": 2.5, "half_width": half_width,
              "low": 1.0, "high": None, "outcome": "agrees", "power": 0.97}  # fmt: skip
    print_verdict({"comparisons": [figure], "verdict": "agrees", "missing": None})
    *_, last = shown = capsys.readouterr().out.splitlines()
    assert last == "agrees"
    assert [line for line in shown if "±" in line and "rise" not in line] == told
    assert any("2.50 ± 0.25" in line for line in shown) == bool(told)


def test_the_exit_status_reports_unsuccessful_experiments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good, bad = {"id": "a", "status": "succeeded"}, {"id": "b", "status": "cancelled"}
    exit_unless_succeeded([good])
    with pytest.raises(typer.Exit) as ended:
        exit_unless_succeeded([good, bad])
    assert ended.value.exit_code == 3
    assert capsys.readouterr() == ("", "mpt: b cancelled\n")


@pytest.mark.parametrize(
    ("command", "end"),
    [("watch", "; to cancel it: mpt cancel a b"), ("table", ""), ("logs -f", "")],
)
def test_an_interrupted_wait_prints_how_to_resume_it(
    capsys: pytest.CaptureFixture[str], command: str, end: str
) -> None:
    with pytest.raises(KeyboardInterrupt), comes_back(command, ["a", "b"]):
        raise KeyboardInterrupt
    told = f"mpt: the run continues; to watch it again: mpt {command} a b{end}\n"
    assert capsys.readouterr() == ("", told)


def test_an_interrupted_wait_for_many_prints_no_ids(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), comes_back("watch", [*"abcdef"]):
        raise KeyboardInterrupt
    assert capsys.readouterr() == ("", "mpt: the 6 runs continue; mpt list shows them\n")


class _Logs:
    """A client whose experiments have these warnings."""

    def __init__(self, **of_experiments: list[str]):
        self.of_experiments = of_experiments

    def logs(self, one: str, _: str) -> list[dict[str, str]]:
        return [{"message": told} for told in self.of_experiments[one]]


def test_a_warning_of_some_experiments_has_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client: Any = _Logs(a=["all", "two"], b=["all"], c=["all", "two", "two"])
    names = {"a": "K=1", "b": "K=2", "c": "K=3"}
    print_warnings(context.CommandContext(client, as_json=False), names)
    assert capsys.readouterr().err == "mpt: all\nmpt: two (K=1; K=3)\n"


def test_a_score_without_an_error_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    def ended(name: str, value: float | None, error: float | None) -> dict[str, Any]:
        labels: dict[str, Any] = {}
        metric = {"name": name, "value": value, "std_err": error, "labels": labels, "reason": "few"}
        return {"id": "a", "name": None, "metrics": [metric], "summary": []}

    for one in (ended("mpt", -1.0, 0.1), ended("mpt", None, None), ended("kl", 1.0, None)):
        print_ended([one])
    assert capsys.readouterr().err == ""
    print_ended([ended("mpt_heldout", -1.0, None)])
    assert capsys.readouterr().err == f"mpt: {context.WITHOUT_ERROR}\n"


def test_an_outage_is_printed_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command reports on stderr the cause of its client's wait."""
    made: list[Any] = []

    class Recorded:
        def __init__(self, url: str, on_outage: Any):
            made.append((url, on_outage))

    monkeypatch.setattr(context, "Client", Recorded)
    connected("http://lab")
    ((url, on_outage),) = made
    on_outage("the service is away")
    assert (url, capsys.readouterr()) == ("http://lab", ("", "mpt: the service is away\n"))


def test_values_of_a_sweep_are_bounded_and_of_json() -> None:
    assert len(_values(f"1..{MAX_VALUES}")) == MAX_VALUES
    for text, told in (
        (f"0..{MAX_VALUES}", f"0..{MAX_VALUES} is more than {MAX_VALUES} values"),
        ("[1,", "[1, is not valid JSON"),
        ("3..2", "3..2 has no values: write 2..3"),
    ):
        with pytest.raises(typer.BadParameter) as refused:
            _values(text)
        assert str(refused.value) == told
    assert _values("-1..1") == [-1, 0, 1]
    assert _values("1,2.5,auto") == [1, 2.5, "auto"]
    assert _values("[1,2]") == [1, 2]
    assert _values("[1],[2]") == [[1], [2]]
    assert _values("3..3") == [3]
    assert _values('["a",1]') == ["a", 1]
    assert _values("x=1,true") == ["x=1", True]


def test_the_available_fields_of_an_experiment_are_printed() -> None:
    one: dict[str, Any] = {
        "id": "ab",
        "name": "mine",
        "tags": [],
        "note": None,
        "status": "succeeded",
        "owner": "me",
        "sweep": None,
        "spec": {
            "model": {"family": "ppca", "latent_dim": 3, "experiment": None},
            "data": {"source": "upload", "dataset": "ab", "n": 9},
        },
        "created_at": "a",
        "started_at": "b",
        "finished_at": None,
        "progress": {"done": 1, "total": 2, "unit": "masks"},
        "queue": {"reason": "priority"},
        "failure": {"kind": "error", "message": "why"},
    }
    assert _told(one) == {
        "id": "ab", "name": "mine", "status": "succeeded", "owner": "me",
        "model": "ppca latent_dim=3", "data": "upload ab",
        "created": "a", "started": "b", "progress": "1 of 2 masks",
        "waits": "priority", "failure": "error: why",
    }  # fmt: skip
    ended = _told({**one, "tags": ["t"], "progress": None, "queue": None, "failure": None})
    assert {*ended} == {
        "id",
        "name",
        "tags",
        "status",
        "owner",
        "model",
        "data",
        "created",
        "started",
    }


def test_a_line_of_a_log() -> None:
    line = {"at": "2026-01-31T12:34:56.789Z", "level": "info", "message": "a\x1bb"}
    assert _log_line(line) == "2026-01-31 12:34:56 info    a\ufffdb"


def test_numbers_of_swept_seeds_are_points_of_one_seed() -> None:
    assert _swept("seeds", "1..3") == [[1], [2], [3]]
    assert _swept("seeds", "[1],[2,3]") == [[1], [2, 3]]
    assert _swept("model.latent_dim", "1,2") == [1, 2]

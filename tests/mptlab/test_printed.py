"""Commands without a service: what they print, and their exit statuses."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from mptlab.commands import context
from mptlab.commands.context import (
    WITHOUT_ERROR,
    CommandContext,
    cell,
    connected,
    print_table,
)
from mptlab.commands.following import (
    comes_back,
    exit_unless_succeeded,
    metric_lines,
    print_ended,
    print_warnings,
    result_lines,
)
from mptlab.progress import printable
from mptlab.texts import Texts
from tests.support.recording import ID, Recording, Typed, one_line


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


def test_texts_of_users_do_not_control_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["lml[model=a]"], [["[red]x\x1b[31m"]])
    shown = capsys.readouterr().out
    assert "lml[model=a]" in shown
    assert "[red]x\ufffd[31m" in shown
    assert printable("a\x1b[31mb\u202e\n") == "a\ufffd[31mb\ufffd\ufffd"


DRAIN = {"host": "gpu3", "since": "2026-01-31T16:00:00Z", "drained_by": "ann",
         "hand_back_at": "2026-01-31T17:00:00Z", "until": None}  # fmt: skip


def test_drained_machines_are_shown_with_their_workers(typed: Typed) -> None:
    plain = {"host": "a", "queue": "cpu", "gpu": None, "busy": True, "experiment_id": None}
    drained = {**plain, "host": "gpu3", "drain": DRAIN}
    until = {**drained, "busy": False, "drain": {**DRAIN, "until": "2026-01-31T18:00:00+00:00"}}
    assert "drained" not in typed(Recording(workers=[plain]), "workers")[1]
    _, shown, _ = typed(Recording(workers=[plain, drained, until]), "workers")
    at, end = (f"{datetime(2026, 1, 31, hour, tzinfo=UTC).astimezone():%Y-%m-%d %H:%M}"
               for hour in (17, 18))  # fmt: skip
    lines = [line for line in shown.splitlines() if "gpu3" in line]
    assert f"by ann, hands back at {at}" in lines[0]
    assert f"by ann until {end}" in lines[1]
    client = Recording()
    assert typed(client, "admin", "undrain", "gpu3")[0] == 0
    assert client.calls == [("undrain", "gpu3")]


def test_the_workers_with_the_memory_that_each_run_uses(typed: Typed) -> None:
    cpu = {"host": "h", "queue": "cpu", "busy": False, "experiment_id": None, "silent_s": 1.0}
    gpu = {**cpu, "queue": "gpu", "busy": True, "gpu": "A GPU", "gpu_number": 3}
    memory = {"gpu_memory_ours": 2**30, "gpu_memory_free": 5 * 2**29, "gpu_memory_total": 2**33}
    unknown = dict.fromkeys(["gpu_number", *memory])
    main = {"memory_ours": 2**29, "memory_free": 2**32, "memory_total": 15 * 2**29}
    found = [{**cpu, "gpu": None, **unknown, **main}, {**gpu, **memory}, {**gpu, **unknown}]
    _, shown, _ = typed(Recording(workers=found), "workers")
    lines = [
        " ".join(line.split()) for line in shown.splitlines() if "host" in line or "h " in line
    ]
    assert lines == [
        "host queue gpu memory busy experiment id silent s",
        "h cpu - 0.5 GiB by its run, 4 of 7.5 free no - 1",
        "h gpu 3: A GPU 1 GiB by its run, 2.5 of 8 free yes - 1",
        "h gpu A GPU ? GiB by its run, ? of ? free yes - 1",
    ]
    assert json.loads(typed(Recording(workers=found), "workers", "--json")[1]) == found
    assert "gpu" not in typed(Recording(workers=found[:1]), "workers")[1]
    full = Recording(workers=[found[0] | {"store_full": True}])
    assert "store full" not in typed(Recording(workers=found), "workers")[1]
    assert "store full" in typed(full, "workers")[1]


@pytest.mark.parametrize(("count", "is_shown"), [(20, True), (21, False)])
def test_few_scores_are_printed_beside_their_file(
    typed: Typed, tmp_path: Path, count: int, is_shown: bool
) -> None:
    rows = [{"row": i, "pll": -1.5} for i in range(count)]
    client = Recording(score=Texts(rows, ["row", "pll"], ID))
    code, shown, error = typed(
        client, "score", "a", "--model", "m", "--csv", str(tmp_path / "s.csv")
    )
    assert (code, error) == (0, f"{ID}\n")
    assert ("pll" in shown) == is_shown
    assert len((tmp_path / "s.csv").read_text().splitlines()) == count + 1


def test_validation_prints_the_cost_of_a_spec(typed: Typed) -> None:
    told = {"masks": 24, "points": 6, "memory_bytes": 3 * 2**20, "queue_reason": "a worker",
            "runtime": {"median_s": 12.4}, "cached_from": None}  # fmt: skip
    code, shown, _ = typed(Recording(validate=told), "validate", "-", text="{}")
    assert code == 0
    assert shown.splitlines() == [
        "the spec is valid", "masks            24", "points           6", "memory           3 MiB",
        "runtime          about 12 s", "would wait       a worker", "computed before  -",
    ]  # fmt: skip
    unknown = Recording(validate={**told, "runtime": None})
    assert "runtime          unknown" in typed(unknown, "validate", "-", text="{}")[1]


def test_the_own_share_is_printed_like_slurm(typed: Typed) -> None:
    share = {"raw_shares": 1, "norm_shares": 0.5, "raw_usage": 3.25, "effectv_usage": None,
             "level_fs": 2, "fair_share": 1 / 3}  # fmt: skip
    waiting = {"id": ID, "queue": {"reason": "priority", "estimated_start": None}}
    found = {"share": share, "running": 2, "max_running": 4, "submitted": 3, "max_submitted": None,
             "gpu_hours": 1.23456, "max_gpu_hours_a_day": 8.0, "items": [waiting]}  # fmt: skip
    code, shown, _ = typed(Recording(queue=found), "queue")
    names, figures, counts, hours, item = shown.splitlines()
    assert code == 0
    columns = ("RawShares", "NormShares", "RawUsage", "EffectvUsage", "LevelFS", "FairShare")
    assert names == " ".join(f"{column:>12}" for column in columns)
    assert figures.split() == ["1", "0.5", "3.25", "-", "2", "0.333333"]
    assert counts == "running 2 of 4, submitted 3"
    assert hours == "GPU-hours in the last 24 h: 1.23 of 8"
    assert item == f"{ID}  priority; starts: unknown"
    none = {**found, "max_gpu_hours_a_day": None, "items": []}
    assert len(typed(Recording(queue=none), "queue")[1].splitlines()) == 3


@pytest.mark.parametrize(
    ("verdict", "error", "code"),
    [("agrees", 0.25, 0), ("differs", 0.0, 3), ("incomplete", None, 3), ("cannot tell", 0.25, 3)],
)
def test_a_verdict_is_a_table_and_an_exit_status(
    typed: Typed, verdict: str, error: float | None, code: int
) -> None:
    row = {"what": "rise", "published": 1.0, "measured": 2.5, "half_width": error, "low": 0.5,
           "high": None, "outcome": "agrees", "power": 0.97}  # fmt: skip
    runs = [{"name": "table1", "runs": [{"id": "a"}, None, {"id": "b"}]}]
    told = {"verdict": verdict, "comparisons": [row], "missing": "a curve" if code else None}
    client = Recording(verdict=told, preset_runs=runs)
    ended, shown, _ = typed(client, "verdict", "table1", ID, ID)
    assert ended == code
    assert client.calls == [("verdict", "table1", [ID, ID])]
    lines = [one_line(line) for line in shown.splitlines()]
    assert "what published measured agrees from to outcome power" in lines
    measured = "2.50 ± 0.25" if error else "2.5"
    assert f"rise 1 {measured} 0.5 - agrees 0.97" in lines
    assert any("±" in line and "half the width" in line for line in lines) == bool(error)
    assert lines[-1] == (f"{verdict}: a curve" if code else verdict)
    assert typed(client, "verdict", "table1", "--json")[0] == code
    assert client.calls[-1] == ("verdict", "table1", ["a", "b"])  # the newest runs


RESULT = {"name": "mpt", "labels": {}, "title": "mpt", "label": "MPT", "unit": "nats", "count": 1,
          "value": -10.1, "std_err": 0.1, "reason": None, "tokens": None, "before": None,
          "agreement": None, "meaning": ""}  # fmt: skip
"""A row of a summary."""
METRIC = {"name": "mpt", "labels": {"seed": 4, "model": "a"}, "value": -1.5, "std_err": 0.01234,
          "reason": None}  # fmt: skip


def test_how_experiments_ended_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {**METRIC, "labels": {}, "value": None, "std_err": None, "reason": "why"}
    rows = [RESULT | {"label": None, "meaning": "estimates lml"}]
    one = {"id": "a", "name": "n\x1b", "metrics": [METRIC, missing], "summary": rows}
    lines = ["mpt seed=4 model=a -1.500 ± 0.012 estimates lml", "mpt why"]
    print_ended([one])
    assert [*map(one_line, capsys.readouterr().out.splitlines())] == lines
    print_ended([one, {"id": "b", "name": None, "metrics": [], "summary": []}])
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


def test_metrics_of_the_way_are_printed_after_final_ones() -> None:
    metrics = [METRIC | {"labels": {"seed": 4, "epoch": 0}}, METRIC | {"labels": {"seed": 4}}]
    first, second = metric_lines({"metrics": metrics, "summary": [RESULT]})
    assert "epoch=0" not in first
    assert "epoch=0" in second


def test_a_score_without_an_error_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    def ended(name: str, value: float | None, error: float | None) -> dict[str, Any]:
        labels: dict[str, Any] = {}
        metric = {"name": name, "value": value, "std_err": error, "labels": labels, "reason": "few"}
        return {"id": "a", "name": None, "metrics": [metric], "summary": []}

    for one in (ended("mpt", -1.0, 0.1), ended("mpt", None, None), ended("kl", 1.0, None)):
        print_ended([one])
    assert capsys.readouterr().err == ""
    print_ended([ended("mpt_heldout", -1.0, None)])
    assert capsys.readouterr().err == f"mpt: {WITHOUT_ERROR}\n"


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
    ("command", "ids", "advice"),
    [
        ("watch", "ab", "to watch it again: mpt watch a b; to cancel it: mpt cancel a b"),
        ("table", "a", "to watch it again: mpt table a"),
        ("watch", "abcdef", "the 6 runs continue; mpt list shows them"),
    ],
)
def test_an_interrupted_wait_prints_how_to_resume_it(
    capsys: pytest.CaptureFixture[str], command: str, ids: str, advice: str
) -> None:
    with pytest.raises(KeyboardInterrupt), comes_back(command, [*ids]):
        raise KeyboardInterrupt
    output, error = capsys.readouterr()
    assert (output, error.count("\n")) == ("", 1)
    assert error.endswith(f"{advice}\n")


def test_a_warning_of_some_experiments_has_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warnings = {"a": ["all", "two"], "b": ["all"], "c": ["all", "two", "two"]}
    client: Any = Recording(logs=lambda one, _: [{"message": told} for told in warnings[one]])
    print_warnings(CommandContext(client, False), {"a": "K=1", "b": "K=2", "c": "K=3"})
    assert capsys.readouterr().err == "mpt: all\nmpt: two (K=1; K=3)\n"


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


def test_the_facts_of_an_experiment_and_its_log(typed: Typed) -> None:
    """Fields that are empty are left out."""
    one: dict[str, Any] = {
        "id": ID, "name": "mine", "title": "mine", "tags": [], "note": None, "status": "running",
        "owner": "me", "sweep": None, "created_at": "a", "started_at": "b", "finished_at": None,
        "spec": {"model": {"family": "ppca", "latent_dim": 3, "experiment": None},
                 "data": {"source": "upload", "dataset": "ab", "n": 9}},
        "progress": {"done": 1, "total": 2, "unit": "masks"}, "queue": {"reason": "priority"},
        "failure": {"kind": "error", "message": "why"}, "metrics": [], "summary": [],
    }  # fmt: skip
    line = {"at": "2026-01-31T12:34:56.789Z", "level": "info", "message": "a\x1bb"}
    client = Recording(get=one, logs=lambda _, level=None: [] if level else [line])
    code, shown, error = typed(client, "show", ID)
    assert (code, error) == (0, "")
    assert [one_line(line) for line in shown.splitlines()] == [
        f"id {ID}", "name mine", "status running", "owner me", "model ppca latent_dim=3",
        "data upload ab", "created a", "started b", "progress 1 of 2 masks", "waits priority",
        "failure error: why",
    ]  # fmt: skip
    assert typed(client, "logs", ID)[1] == "2026-01-31 12:34:56 info    a\ufffdb\n"

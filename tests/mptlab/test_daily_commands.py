"""Daily commands: lists, comparisons, the state that was reached, the next command."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mptlab import Client
from mptlab.commands import following
from mptlab.commands.completion import (
    checkpoints,
    ids_and_names,
    models,
    preset_names,
    runs_and_sweeps,
    spec_fields,
    sweeps_and_names,
)
from mptlab.commands.context import CommandContext, cell
from mptlab.experiments import Experiment
from mptlab.paired import Paired
from mptlab.progress import shown_progress, sparkline
from mptlab.texts import Texts
from tests.mptlab.test_progress import Screen
from tests.support.commands import mpt_here
from tests.support.ppca_spec import ppca_spec
from tests.support.recording import ID, Recording, Typed, one_line

CREATED = "2026-01-31T12:34:56.789Z"
RUN: dict[str, Any] = {
    "id": ID, "name": None, "title": "one", "status": "succeeded", "sweep": None,
    "created_at": CREATED, "summary": [], "terminal": True, "progress": None, "metrics": [],
}  # fmt: skip


def test_a_sweep_is_one_line_of_the_list(environment: dict[str, str], client: Client) -> None:
    run = client.experiments.create(ppca_spec(seeds=[77]), name="beside K", wait=True)
    sweep = client.sweep(ppca_spec(), {"evaluate.masks.per_size": [2, 3]}, name="K in a list")
    sweep.wait()
    code, shown, _ = mpt_here(environment, "list", "--limit", "2")
    lines = [one_line(line) for line in shown.splitlines()]
    of_sweep = f"{sweep.id} K in a list 2 succeeded 2 points: mpt table {sweep.id[:12]} "
    assert code == 0
    again = client.sweep(ppca_spec(), {"evaluate.masks.per_size": [2, 3]}, name="computed before")
    assert f"{again.id} computed before" in one_line(
        mpt_here(environment, "list", "--limit", "3")[1]
    )
    assert any(line.startswith(of_sweep) for line in lines)
    assert any(line.startswith(f"{run.id} beside K succeeded") for line in lines)
    for words in (["--points"], ["--order-by", "name"]):
        shown = mpt_here(environment, "list", "--limit", "2", *words)[1]
        assert sweep.id not in shown


def test_a_pause_prints_the_state_that_was_reached(typed: Typed) -> None:
    states = iter(["running", "paused"])
    client = Recording(pause={**RUN, "status": "running"},
                       get=lambda _: {**RUN, "status": next(states)})  # fmt: skip
    assert typed(client, "pause", ID)[1] == f"{ID} paused\n"


def test_a_run_that_takes_its_time_to_stop_is_not_waited_for(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptlab.commands.changing.STOPPING_S", 0.1)
    client = Recording(cancel={**RUN, "status": "running"}, get={**RUN, "status": "running"})
    assert typed(client, "cancel", ID)[1].startswith(f"{ID} running, and ")


def test_experiments_are_compared_and_drawn_side_by_side(
    environment: dict[str, str], client: Client, tmp_path: Path
) -> None:
    for name, per_size in (("small", 2), ("large", 3)):
        spec = ppca_spec(evaluate__masks__per_size=per_size)
        client.experiments.create(spec, name=name, wait=True)
    code, shown, _ = mpt_here(environment, "compare", "small", "large")
    fields = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert (code, fields["name"]) == (0, ["small", "large"])
    assert fields["evaluate.masks.per_size"] == ["2", "3"]
    file = tmp_path / "both.svg"
    assert mpt_here(environment, "plot", "small", "large", str(file))[0] == 0
    assert all(f">{name}, " in file.read_text() for name in ("small", "large"))
    code, _, error = mpt_here({**environment, "COLUMNS": "200"}, "plot", "small")
    assert (code, "give an output file, too" in one_line(error)) == (2, True)


def test_the_points_of_a_sweep_are_compared(environment: dict[str, str], client: Client) -> None:
    sweep = client.sweep(ppca_spec(), {"evaluate.masks.per_size": [2, 3]}, name="both sizes")
    sweep.wait()
    points = [row["experiment_id"] for row in sweep.table()]
    code, shown, _ = mpt_here(environment, "compare", "both sizes", "--json")
    assert (code, [row["id"] for row in json.loads(shown)]) == (0, points)


def test_a_long_list_is_cut_in_a_table() -> None:
    assert cell([*range(40)]) == "0,1,2,3,4,5,6,7,8,9,10,11,… (40 values)"
    assert cell(["a", "b"]) == "a,b"


def test_scores_of_texts_are_drawn_by_another_command(typed: Typed) -> None:
    client: Any = Recording()
    run = {**RUN, "spec": {"evaluate": {"texts": {"scores": ["pll"]}}}}
    client.experiments = SimpleNamespace(get=lambda _: Experiment(client, run))
    code, _, error = typed(client, "plot", ID, ID[::-1], "both.pdf")
    assert (code, "mpt score FILE --model a,b --plot" in one_line(error)) == (2, True)


def test_two_models_are_compared_text_by_text(typed: Typed, tmp_path: Path) -> None:
    def scored(*values: float) -> Texts:
        rows = [
            {"row": i, "text": f"text {i}", "tokens": 3, "pll": value}
            for i, value in enumerate(values)
        ]
        return Texts(rows, ["row", "text", "tokens", "pll"], ID)

    answers = {"small": scored(-3.0, -5.0, -4.0), "large": scored(-1.0, -4.0, -4.5)}
    client = Recording(score=lambda table, model, scores, **_: answers[model])
    words = ("score", "text 0", "text 1", "text 2", "--model", "small,large")
    code, shown, _ = typed(client, *words, "--plot", str(tmp_path / "differences.pdf"))
    assert code == 0
    assert (tmp_path / "differences.pdf").read_bytes().startswith(b"%PDF")
    assert "large minus small: 2.5 ± 2.2 nats" in shown
    found = json.loads(typed(client, *words, "--json")[1])
    assert [row["difference"] for row in found["texts"]] == [2.0, 1.0, -0.5]
    assert found["sum_std_err"] == pytest.approx(math.sqrt(3 * 19 / 12))
    assert typed(client, *words, "--score", "pll", "--score", "unmasked")[0] == 2


def test_a_folder_with_a_comma_in_its_name_is_one_model(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptlab.commands.texts.checkpoint_of", lambda model: model)
    folder = tmp_path / "small,large"
    folder.mkdir()
    client = Recording(score=Texts([{"row": 0, "pll": -1.0}], ["row", "pll"], ID))
    assert typed(client, "score", "a", "--model", str(folder))[0] == 0
    assert [call[2] for call in client.calls] == [str(folder)]


def test_the_error_of_a_difference_has_those_of_both_scores() -> None:
    def scored(value: float, error: float) -> Texts:
        row = {"row": 0, "text": "a", "cumulative": value, "cumulative_std_err": error}
        return Texts([row])

    paired = Paired((scored(-9.0, 3.0), scored(-7.0, 4.0)), ("a", "b"), "cumulative")
    assert (paired[0]["difference"], paired[0]["difference_std_err"]) == (2.0, 5.0)
    assert paired.total == (2.0, None)


def test_a_terminal_shows_the_objective_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown: list[dict[str, Any]] = []
    running = {**RUN, "status": "running"}
    curves = [{"name": "loss", "value": [9.0, 5.0, None, 1.0]}, {"name": "lml", "value": [0.0]}]

    def wait(_: str, on_change: Callable[[Any], None]) -> dict[str, Any]:
        on_change(running)
        return RUN

    context: Any = Recording()
    context.client = Recording(wait=wait, curves=curves)
    monkeypatch.setattr(following, "followed", lambda: _Shown(shown))
    assert following.follow(context, [ID]) == [RUN]
    assert shown[0]["latest"] == f"loss {sparkline([9.0, 5.0, 1.0])} 1"
    screen = Screen()
    with shown_progress(screen) as show:
        show(shown[0])
    assert shown[0]["latest"] in screen.getvalue()


class _Shown:
    def __init__(self, shown: list[Any]):
        self.shown = shown

    def __enter__(self) -> Callable[[Any], None]:
        return self.shown.append

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("values", "line"),
    [([], ""), ([3.0], "▁"), ([1.0, 1.0], "▁▁"), ([0.0, 7.0, 3.0], "▁█▄"),
     ([*range(32)], "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██")],
)  # fmt: skip
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values: list[float], line: str) -> None:
    assert sparkline(values) == line


def test_a_person_is_told_the_next_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    client: Any = Recording()
    CommandContext(client, as_json=False).advise("mpt watch mine")
    CommandContext(client, as_json=True).advise("mpt watch mine")
    assert capsys.readouterr().err == "next: mpt watch mine\n"


def test_a_preset_is_a_spec_to_begin_with(environment: dict[str, str], tmp_path: Path) -> None:
    code, shown, _ = mpt_here(environment, "presets", "spec", "table1")
    spec = tmp_path / "spec.json"
    spec.write_text(shown)
    assert (code, mpt_here(environment, "validate", str(spec))[0]) == (0, 0)


def test_a_shell_completes_names(client: Client) -> None:
    run = client.experiments.create(ppca_spec(), name="for a shell")
    assert dict(ids_and_names("for a s")).keys() == {"for a shell"}
    assert run.id in dict(ids_and_names(run.id[:20]))
    sweep = client.sweep(ppca_spec(), {"evaluate.masks.per_size": [4]}, name="for a shell, too")
    assert dict(sweeps_and_names("for a")).keys() == {"for a shell, too"}
    assert sweep.id in dict(sweeps_and_names(sweep.id[:20]))
    assert dict(runs_and_sweeps("for a s")).keys() == {"for a shell", "for a shell, too"}
    assert ("table1" in dict(preset_names("tab"))) == ("table1" in dict(preset_names("")))
    assert preset_names("no such") == []


def test_a_shell_completes_fields_and_models(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = dict(spec_fields("model.l"))
    assert "model.latent_dim=" in fields
    assert all(path.startswith("model.l") and meaning for path, meaning in fields.items())
    assert {"data.n=", "evaluate.masks.per_size=", "seeds="} <= dict(spec_fields("")).keys()
    client.experiments.create(ppca_spec(), name="ppca of a shell")
    assert dict(models("pp")).keys() == {"ppca", "ppca,factor_analysis", "ppca of a shell"}
    assert isinstance(client.checkpoints(), list)
    monkeypatch.setattr(Client, "checkpoints", lambda _: ["bert", "rxnfp"])
    assert dict(checkpoints("r")).keys() == {"rxnfp"}
    assert dict(checkpoints("bert,r")).keys() == {"bert,rxnfp"}

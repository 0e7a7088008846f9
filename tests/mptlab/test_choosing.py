"""The best value of a swept field: its table, its mark and its figure."""

import json
from pathlib import Path
from typing import Any

import pytest

from mptlab import Client
from mptlab.commands.context import OTHER_ROWS, SAME_ROWS, _best_line
from mptlab.swept_plots import draw
from mptlab.tables import Best, best_of, sweep_for_people
from tests.support.commands import mpt_here
from tests.support.ppca_spec import ppca_spec

K = "model.latent_dim"


def rows(*lml: float | None, error: float | None = None, **more: Any) -> list[dict[str, Any]]:
    return [
        {K: k, "status": "succeeded", "lml": value, "lml std_err": error, "lml count": 1, **more}
        for k, value in enumerate(lml, 1)
    ]


def test_the_best_row_and_those_within_its_error() -> None:
    assert best_of(rows(-3.0, -1.0, None, -1.5)) == ("lml", 1, [])
    assert best_of(rows(-3.0, -1.0, None, -1.5, error=0.2)) == ("lml", 1, [3])
    assert best_of(rows(-3.0, -1.0, -1.5, error=0.17)) == ("lml", 1, [])
    assert best_of(rows(-3.0, None)) is None
    assert best_of([{K: 1}, {K: 2}]) is None


def test_what_was_held_out_decides() -> None:
    found = rows(-3.0, -2.0, -1.0)
    for row, heldout in zip(found, (-5.0, -4.0, -6.0), strict=True):
        row |= {"lml_heldout": heldout, "lml_heldout std_err": None, "lml_heldout count": 1}
    assert best_of(found) == ("lml_heldout", 1, [])
    shown = sweep_for_people(found)
    assert [row["best"] for row in shown] == ["", "*", ""]
    assert list(shown[0]) == [K, "lml", "lml_heldout", "best"]


def test_the_best_held_out_row_is_told_with_what_its_error_leaves_out() -> None:
    """A user took the error of the masks for that of the held-out value."""
    for metric, field, ending in (
        ("lml_heldout", K, OTHER_ROWS),
        ("lml", K, SAME_ROWS),
        ("lml", "train.epochs", "=3"),
        ("area", K, "=3"),
    ):
        told = _best_line(Best(metric, 0, []), [{field: 3}], [field])
        assert told.startswith(f"* best by {metric}: {field}=3")
        assert told.endswith(ending)


def test_a_status_is_shown_if_not_all_succeeded() -> None:
    found = rows(-3.0, -2.0)
    found[0]["status"] = "failed"
    assert [row["status"] for row in sweep_for_people(found)] == ["failed", "succeeded"]


@pytest.fixture(scope="module")
def sweep(environment: dict[str, str]) -> str:
    """A sweep over K and seeds, followed to its table."""
    words = ("sweep", "-", "--over", f"{K}=1,2", "--over", "seeds=[1],[2]", "--name", "choose K")
    text = json.dumps(ppca_spec(model__init="random"))
    code, shown, error = mpt_here(environment, *words, "--watch", text=text)
    assert code == 0, error
    return shown


def test_a_followed_sweep_ends_with_means_and_the_best_row(
    environment: dict[str, str], sweep: str
) -> None:
    head, _, first, second, last, note = (line for line in sweep.splitlines() if line.strip())
    assert head.split() == [K, "lml", "mpt", "best"]
    assert [first.split()[0], second.split()[0]] == ["1", "2"]
    assert (first + second).count("*") == 1
    assert last.startswith(f"* best by lml: {K}=")
    assert note in SAME_ROWS
    assert mpt_here(environment, "table", "choose K") == (0, sweep, "")


def test_a_sweep_is_drawn_by_its_name(
    environment: dict[str, str], client: Client, sweep: str, tmp_path: Path
) -> None:
    for words in ([], ["--y", "mpt", "--x", K]):
        file = tmp_path / f"{len(words)}.pdf"
        code, shown, error = mpt_here(environment, "plot", "choose K", str(file), *words)
        assert (code, shown) == (0, f"{file}\n"), error
        assert file.read_bytes().startswith(b"%PDF")
    for option, told in (
        ("--y", "no metric no: it has lml, mpt"),
        ("--x", f"field no: it has {K}"),
    ):
        code, _, error = mpt_here(environment, "plot", "choose K", str(file), option, "no")
        assert code == 1
        assert told in error
    one = client.get_sweep(next(client.sweeps())["id"])
    assert len(one.means()) == 2
    assert one.plot("mpt").axes[0].get_ylabel() == "MPT score, nats"
    assert "best" in one._repr_html_()


def points(line: Any) -> Any:
    return line.get_xydata().tolist()


def test_lines_bars_and_the_best_point_of_a_figure() -> None:
    found = rows(-3.0, -1.0, -2.0, error=0.25, init="a") + rows(-4.0, -5.0, None, init="b")
    (axes,) = draw(found, [K, "init", "seeds"], None, None, "title").axes
    bars = [points(one.lines[0]) for one in axes.containers]  # type: ignore[attr-defined]
    assert bars == [[[1, -3.0], [2, -1.0], [3, -2.0]], [[1, -4.0], [2, -5.0]]]
    (segments,) = axes.containers[0].lines[2]  # type: ignore[attr-defined]
    assert segments.get_segments()[0].tolist() == [[1, -3.5], [1, -2.5]]  # two standard errors
    best = next(line for line in axes.lines if line.get_label() == "best")
    assert points(best) == [[2, -1.0]]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["best", "init a", "init b"]
    assert (axes.get_xlabel(), axes.get_title()) == ("latent dimensions K", "title")
    assert all(tick == int(tick) for tick in axes.get_xticks())

"""The best value of a swept field: its table, its mark and its figure."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from mptlab import Client
from mptlab.swept_plots import draw
from mptlab.tables import BEHIND_BEST, sweep_for_people
from tests.support.commands import mpt_here
from tests.support.ppca_spec import ppca_spec

K = "model.latent_dim"


def rows(*lml: float | None, error: float | None = None, **more: Any) -> list[dict[str, Any]]:
    return [
        {K: k, "status": "succeeded", "lml": value, "lml std_err": error, "lml count": 1, **more}
        for k, value in enumerate(lml, 1)
    ]


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
    assert head.split() == ["latent", "dim", "lml", "mpt", "best"]
    assert [first.split()[0], second.split()[0]] == ["1", "2"]
    assert (first + second).count("*") == 1
    assert last.startswith("* Best by LML: K = ")
    assert note.startswith("  The LML of the data that a model was fitted to rises")
    code, again, error = mpt_here(environment, "table", "choose K")
    assert (code, again, "has no error" in error) == (0, sweep, True)
    assert "choose K" in mpt_here(environment, "sweeps")[1]


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


def test_the_service_compares_the_points_on_the_rows_that_they_share(client: Client) -> None:
    data = {"source": "ppca", "n": 150, "dim": 5, "latent_dim": 2, "noise_precision": 2.0}
    spec = {"model": {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"},
            "data": data | {"heldout": 0.4}, "evaluate": {"masks": {"schedule": "all"}},
            "seeds": [1, 2]}  # fmt: skip
    sweep = client.sweep(spec, {K: [1, 2, 3], "seeds": [[1], [2, 3]]})
    sweep.wait(progress=False)
    for found in (sweep.means(), sweep.table()):
        best = max(found, key=lambda row: float(row["lml_heldout"]))
        errors = [row[f"{BEHIND_BEST} std_err"] for row in found]
        for row, error in zip(found, errors, strict=True):
            gap = best["lml_heldout"] - row["lml_heldout"]
            assert row[BEHIND_BEST] == pytest.approx(gap, abs=1e-12)
            if row is best:
                assert error == 0
            elif row[K] == 1:
                assert 0.02 < error < row["lml_heldout_population std_err"]
    (of_one,) = [row for row in sweep.table() if row[K] == 1 and row["point"] < 2][:1]
    of_best = next(row for row in sweep.table() if row[BEHIND_BEST] == 0)

    def parts(row: Any) -> list[float]:
        (curve,) = client.curves(row["experiment_id"], "lml_heldout_parts")
        return list(curve["value"])

    differences = [a - b for a, b in zip(parts(of_best), parts(of_one), strict=True)]
    expected = statistics.stdev(differences) / len(differences) ** 0.5
    assert of_one[f"{BEHIND_BEST} std_err"] == pytest.approx(expected, rel=0.1)  # of 60 rows


def test_the_ids_in_a_table_are_those_of_its_runs(
    environment: dict[str, str], client: Client
) -> None:
    sweep = client.sweep(ppca_spec(model__init="random"), {K: [1, 2]}, name="with ids")
    sweep.wait(progress=False)
    code, shown, error = mpt_here(environment, "table", "with ids")
    assert code == 0, error
    ids = [line.split()[-1] for line in shown.splitlines() if re.match(r" \d", line)]
    runs = [json.loads(mpt_here(environment, "show", short, "--json")[1])["id"] for short in ids]
    assert runs == [row["experiment_id"] for row in sweep.table()]


def test_a_table_shows_what_people_need() -> None:
    """The best row is marked; a status is shown if not all succeeded, and each column that the
    table is sorted by."""
    points = [{**row, "difference": 0.5, "difference std_err": 0.1} for row in rows(-3.0, -2.0)]
    shown = sweep_for_people(points, points[1])
    assert [row["best"] for row in shown] == ["", "*"]
    assert list(shown[0]) == [K, "lml", "best"]
    assert sweep_for_people(points, kept="difference")[0]["difference"] == "0.50 ± 0.10"
    points[0]["status"] = "failed"
    assert [row["status"] for row in sweep_for_people(points)] == ["failed", "succeeded"]
    assert "best" not in sweep_for_people(points)[0]


def table(
    found: list[dict[str, Any]],
    *fields: str,
    chief: str = "lml",
    varying: list[list[str]] | None = None,
    best: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The service's table of these flat rows."""
    names = dict.fromkeys(
        name.removesuffix(" count") for row in found for name in row if name.endswith(" count")
    )
    items = [
        {
            "fields": {path: row[path] for path in fields if path in row},
            "metrics": {
                name: {part: row.get(f"{name} {part}") for part in ("std_err", "count")}
                | {"value": row[name]}
                for name in names
                if name in row
            },
        }
        for row in found
    ]
    return {"fields": [*fields], "metrics": [*names], "items": items, "pooled": [],
            "chief_metric": chief, "varying": varying or [[fields[0]]], "best": best}  # fmt: skip


def points(line: Any) -> Any:
    return line.get_xydata().tolist()


def test_lines_bars_and_the_best_point_of_a_figure() -> None:
    found = rows(-3.0, -1.0, -2.0, error=0.25, init="a") + rows(-4.0, -5.0, None, init="b")
    best = {"metric": "lml", "row": 1, "alike": [], "smallest": None, "fields": [K, "init"]}
    given = table(found, K, "init", varying=[[K], ["init"]], best=best)
    (axes,) = draw(given, None, None, "title").axes
    bars = [points(one.lines[0]) for one in axes.containers]  # type: ignore[attr-defined]
    assert bars == [[[1, -3.0], [2, -1.0], [3, -2.0]], [[1, -4.0], [2, -5.0]]]
    (segments,) = axes.containers[0].lines[2]  # type: ignore[attr-defined]
    assert segments.get_segments()[0].tolist() == [[1, -3.5], [1, -2.5]]  # two standard errors
    marked = next(line for line in axes.lines if line.get_label() == "best")
    assert points(marked) == [[2, -1.0]]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["best", "init a", "init b"]
    assert (axes.get_xlabel(), axes.get_title()) == ("latent dimensions K", "title")
    assert all(tick == int(tick) for tick in axes.get_xticks())


PER_SIZE = "evaluate.masks.per_size"


def measured(*latent_dims: int) -> list[dict[str, Any]]:
    return [
        {PER_SIZE: masks, **({K: k} if len(latent_dims) > 1 else {}), "lml": -float(k),
         "lml std_err": 0.0, "lml count": 1, "mpt": -float(k), "mpt std_err": 1 / masks,
         "mpt count": 1} for masks in (4, 16) for k in latent_dims
    ]  # fmt: skip


def test_the_error_of_a_metric_is_drawn() -> None:
    found = measured(1)
    given = table(found, PER_SIZE, chief="mpt")
    assert draw(given, None, None).axes[0].get_ylabel() == "MPT score, nats"
    (axes,) = draw(given, "mpt std_err", None).axes
    assert points(axes.containers[0].lines[0]) == [[4, 0.25], [16, 1 / 16]]  # type: ignore[attr-defined]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylabel() == "standard error of the MPT score, nats"
    (axes,) = draw(given, "lml std_err", None).axes
    assert axes.get_yscale() == "linear"  # it is 0
    with pytest.raises(ValueError, match="no metric other"):
        draw(given, "other std_err", None)


def test_commands_order_their_tables(environment: dict[str, str]) -> None:
    words = ("sweep", "-", "--over", f"{K}=1..3", "--name", "sorted", "--sort", f"-{K}")
    spec = json.dumps(ppca_spec(model__init="maximum_likelihood"))
    code, _, error = mpt_here({**environment, "COLUMNS": "200"}, *words, text=spec)
    assert code == 2
    assert "--sort orders the table of --watch" in error
    code, shown, error = mpt_here(environment, *words, "--watch", text=spec)
    assert code == 0, error
    assert firsts(shown) == ["3", "2", "1"]
    assert firsts(mpt_here(environment, "table", "sorted", "--sort", "lml")[1]) == ["1", "2", "3"]
    _, shown, _ = mpt_here(environment, "table", "sorted", "--sort", f"-{K}", "--json")
    assert [row[K] for row in json.loads(shown)] == [3, 2, 1]
    _, shown, _ = mpt_here(environment, "table", "sorted", "--sort", f"-{K}", "--csv", "-")
    assert [line.split(",")[3] for line in shown.splitlines()] == [K, "3", "2", "1"]
    code, shown, error = mpt_here(environment, "table", "sorted", "--sort", "mtp")
    assert (code, shown) == (1, "")
    assert f"there is no column mtp: did you mean mpt? there are {K}, lml, mpt" in error


def firsts(shown: str) -> list[str]:
    """First cells of the rows of a printed table."""
    cells = (line.split()[0] for line in shown.splitlines() if line.strip())
    return [cell for cell in cells if cell.isdigit()]


def test_bars_of_the_held_out_lml_are_those_of_the_differences() -> None:
    found = [
        {K: k, "lml_heldout": value, "lml_heldout std_err": 9.0, "lml_heldout count": 1,
         BEHIND_BEST: -1.0 - value, f"{BEHIND_BEST} std_err": error, f"{BEHIND_BEST} count": 1}
        for k, value, error in ((1, -3.0, 0.5), (2, -1.25, 0.25), (3, -1.0, 0.0))
    ]  # fmt: skip
    best = {"metric": "lml_heldout", "row": 2, "alike": [1], "smallest": 1, "fields": [K]}
    (axes,) = draw(table(found, K, chief="lml_heldout", best=best), None, None).axes
    (segments,) = axes.containers[0].lines[2]  # type: ignore[attr-defined]
    heights = [[end[1] for end in bar] for bar in segments.get_segments()]
    assert heights == [[-4.0, -2.0], [-1.75, -0.75], [-1.0, -1.0]]
    marked = {line.get_label(): points(line) for line in axes.lines}
    assert marked["best"] == [[3, -1.0]]
    assert marked["smallest as good"] == [[2, -1.25]]
    legend = axes.get_legend()
    assert legend is not None
    assert any("difference from the best" in text.get_text() for text in legend.get_texts())

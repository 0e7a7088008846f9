"""The best value of a swept field: its table, its mark and its figure."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from mptlab import Client
from mptlab.commands.context import (
    OTHER_ROWS,
    SAME_ROWS,
    WITHOUT_ERROR,
    _best_line,
    short_ids,
)
from mptlab.sorting import in_order
from mptlab.swept_plots import draw
from mptlab.tables import (
    BEHIND_BEST,
    Best,
    best_of,
    choosing,
    deciding,
    sweep_for_people,
    with_error,
)
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


def test_held_out_rows_that_are_shared_tell_which_are_as_good() -> None:
    def of(*behind: tuple[float, float | None]) -> list[dict[str, Any]]:
        return [
            {K: k, "lml_heldout": -lack, "lml_heldout std_err": 9.0, BEHIND_BEST: lack,
             f"{BEHIND_BEST} std_err": error} for k, (lack, error) in enumerate(behind, 2)
        ]  # fmt: skip

    found = of((0.5, 0.26), (0.0, 0.0), (0.5, 0.24), (0.5, None))
    assert best_of(found) == ("lml_heldout", 1, [0])
    told = _best_line(Best("lml_heldout", 1, [0]), found, [K])
    assert f"{K}=3; within two standard errors: 2\n" in told
    assert f"The smallest model as good as the best: {K}=2\n" in told
    assert "smallest" not in _best_line(Best("lml_heldout", 1, []), found, [K])
    families = [row | {"model.family": "ppca"} for row in found]
    of_families = _best_line(Best("lml_heldout", 1, [0]), families, [K, "model.family"])
    assert f"as good as the best: {K}=2, model.family=ppca\n" in of_families
    both = _best_line(Best("lml_heldout", 1, [0, 2]), [row | {"init": "a"} for row in found],
                      [K, "init"])  # fmt: skip
    assert f"{K}=3, init=a; within two standard errors: {K}=2, init=a; {K}=4, init=a\n" in both
    assert "smallest" not in both
    (other,) = of((0.0, 0.0))
    of_other_data = [{**other, "lml_heldout": 0.25}, *found]  # compared by their own errors
    assert best_of(of_other_data) == ("lml_heldout", 0, [1, 2, 3, 4])
    ties = of((0.0, 0.0), (0.5, 0.24), (0.0, 0.0), (0.5, 0.26))
    assert best_of(ties) == ("lml_heldout", 0, [2, 3])


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
    assert mpt_here(environment, "table", "choose K") == (0, sweep, f"mpt: {WITHOUT_ERROR}\n")


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


def test_a_wrong_name_of_a_sweep_has_the_nearest(environment: dict[str, str], sweep: str) -> None:
    code, _, error = mpt_here(environment, "table", "chose K")
    assert code == 1
    assert "you have no sweep chose K: did you mean choose K?" in error
    code, _, error = mpt_here(environment, "download", "choose K")
    assert code == 1
    assert "it is a sweep, mpt table choose K --csv - has the ids of its runs" in error


def test_a_table_has_the_ids_of_its_runs(environment: dict[str, str], client: Client) -> None:
    sweep = client.sweep(ppca_spec(model__init="random"), {K: [1, 2]}, name="with ids")
    sweep.wait(progress=False)
    code, shown, error = mpt_here(environment, "table", "with ids")
    assert code == 0, error
    ids = [line.split()[-1] for line in shown.splitlines() if re.match(r" \d", line)]
    whole = [row["experiment_id"] for row in sweep.table()]
    assert len(ids) == len(whole)
    for short, one in zip(ids, whole, strict=True):
        _, found, _ = mpt_here(environment, "show", short, "--json")
        assert json.loads(found)["id"] == one


def test_ids_in_a_table_are_as_long_as_they_need_to_be() -> None:
    def ids(*last: str) -> list[str]:
        rows = [{"experiment_id": f"{'0' * 14}{end}".ljust(32, "e")} for end in last]
        return [one["id"] for one in short_ids(rows)]

    assert ids("a") == ["0" * 12]
    assert ids("a1", "a2", "b2") == [f"{'0' * 14}{end}" for end in ("a1", "a2", "b2")]
    assert ids("a", "a") == ["0" * 12] * 2
    assert short_ids([{K: 1}]) == [{}]


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


def test_fields_that_do_not_tell_rows_apart_are_not_named() -> None:
    found = [
        {K: k, "train.epochs": 10 * k, "data.n": 5, "lml": -float(k), "lml std_err": None,
         "lml count": 1} for k in (1, 2, 3)
    ]  # fmt: skip
    fields = [K, "train.epochs", "data.n"]
    assert choosing(found, fields) == [K]
    assert choosing(found, fields[1:]) == ["train.epochs"]
    crossed = [*found, {**found[0], "train.epochs": 20}]
    assert choosing(crossed, fields) == fields[:2]
    (axes,) = draw(found, fields, None, None).axes
    assert len(axes.containers) == 1
    (axes,) = draw(crossed, fields, None, None).axes
    assert len(axes.containers) == 3


PER_SIZE = "evaluate.masks.per_size"


def measured(*latent_dims: int) -> list[dict[str, Any]]:
    return [
        {PER_SIZE: masks, **({K: k} if len(latent_dims) > 1 else {}), "lml": -float(k),
         "lml std_err": 0.0, "lml count": 1, "mpt": -float(k), "mpt std_err": 1 / masks,
         "mpt count": 1} for masks in (4, 16) for k in latent_dims
    ]  # fmt: skip


def test_nothing_is_best_where_only_the_measurement_differs() -> None:
    found = measured(1)
    assert deciding(found) == []
    assert best_of(found) is None
    assert "best" not in sweep_for_people(found)[0]
    (axes,) = draw(found, [PER_SIZE], None, None).axes
    assert axes.get_ylabel() == "MPT score, nats"
    both = measured(1, 2)
    assert deciding(both) == [K]
    best = best_of(both)
    assert best is not None
    assert _best_line(best, both, deciding(both)).startswith(f"* best by lml: {K}=1\n")
    (axes,) = draw(both, [K, PER_SIZE], None, None).axes
    assert axes.get_ylabel() == "log marginal likelihood, nats"


def test_the_error_of_a_metric_is_drawn_and_sorted() -> None:
    found = measured(1)
    (axes,) = draw(found, [PER_SIZE], "mpt std_err", None).axes
    assert points(axes.containers[0].lines[0]) == [[4, 0.25], [16, 1 / 16]]  # type: ignore[attr-defined]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylabel() == "standard error of the MPT score, nats"
    (axes,) = draw(found, [PER_SIZE], "lml std_err", None).axes
    assert axes.get_yscale() == "linear"  # it is 0
    with pytest.raises(ValueError, match="no metric other"):
        draw(found, [PER_SIZE], "other std_err", None)
    assert [row[PER_SIZE] for row in in_order(found, "mpt std_err")] == [16, 4]
    assert [row[PER_SIZE] for row in in_order(found, "-mpt std_err")] == [4, 16]
    with pytest.raises(ValueError, match="there is no column other std_err"):
        in_order(found, "other std_err")


def test_a_table_shows_the_column_that_it_is_sorted_by() -> None:
    found = [{**row, "difference": 0.5, "difference std_err": 0.1} for row in measured(1)]
    assert "difference" not in sweep_for_people(found)[0]
    assert sweep_for_people(found, "difference")[0]["difference"] == "0.50 ± 0.10"


def test_rows_that_differ_by_rounding_are_equal() -> None:
    found = rows(-3.0, -1.0, -1.0 - 1e-7)
    assert best_of(found) == ("lml", 1, [2])
    assert with_error(4.2e-10, 5.8e-11) == "4.2e-10 ± 5.8e-11"
    assert with_error(-27.5, 5.8e-11) == "-27.50000000"
    assert with_error(-27.5, 1e-7) == "-27.50000000 ± 0.00000010"


def test_bars_of_the_held_out_lml_are_those_of_the_differences() -> None:
    found = [
        {K: k, "lml_heldout": value, "lml_heldout std_err": 9.0, "lml_heldout count": 1,
         BEHIND_BEST: -1.0 - value, f"{BEHIND_BEST} std_err": error}
        for k, value, error in ((1, -3.0, 0.5), (2, -1.25, 0.25), (3, -1.0, 0.0))
    ]  # fmt: skip
    (axes,) = draw(found, [K], None, None).axes
    (segments,) = axes.containers[0].lines[2]  # type: ignore[attr-defined]
    heights = [[end[1] for end in bar] for bar in segments.get_segments()]
    assert heights == [[-4.0, -2.0], [-1.75, -0.75], [-1.0, -1.0]]
    marked = {line.get_label(): points(line) for line in axes.lines}
    assert marked["best"] == [[3, -1.0]]
    assert marked["smallest as good"] == [[2, -1.25]]
    legend = axes.get_legend()
    assert legend is not None
    assert any("difference from the best" in text.get_text() for text in legend.get_texts())
    two = [row | {"init": init} for row in found for init in "ab"]
    (axes,) = draw(two, [K, "init"], None, None).axes
    assert "smallest as good" not in {line.get_label() for line in axes.lines}

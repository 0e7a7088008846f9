"""Pictures of reports show the right numbers."""

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mptlab.errors import Json
from mptlab.report_plots import picture


def series(
    name: str, values: list[float | None], x: list[float] | None = None, **labels: Any
) -> Json:
    places = x or [float(i) for i in range(len(values))]
    return {"name": name, "labels": labels, "x": places, "value": values,
            "std_err": [None] * len(values), "n": [1] * len(values)}  # fmt: skip


def panels(name: str, *experiments: list[Json], **preset: Any) -> list[Axes]:
    """The panels of a preset with these series."""
    specs = [{"seeds": [4, 44]}] * len(experiments)
    whole = {"name": name, "specs": specs, "published": {}, **preset}
    figure = picture(whole, [{"series": one} for one in experiments], [])
    assert figure is not None
    return figure.axes


def ys(drawn: Line2D) -> list[float]:
    values: list[float] = np.asarray(drawn.get_ydata(), dtype=float).tolist()
    return values


def line(axes: Axes, label: str) -> list[float]:
    """The values of the line with this label."""
    (found,) = [one for one in axes.get_lines() if one.get_label() == label]
    return ys(found)


def test_a_mean_over_seeds_has_the_places_that_all_of_them_have() -> None:
    found = [
        series("lml", [-4.0, -2.0, None, -1.0], seed=4),
        series("lml", [-6.0, -4.0, -3.0, -2.0], seed=44),
    ]
    (axes,) = panels("fig2-left", found)
    assert line(axes, "LML") == [-5.0, -3.0, -1.5]


def test_objectives_are_drawn_apart_without_noisy_scores() -> None:
    found = [
        series("lml", [-9.0, -2.0, -1.0], seed=4, objective="mpt"),
        series("lml", [-9.0, -3.0, -2.0], seed=4, objective="elbo"),
        series("elbo", [-9.0, -4.0, -3.0], seed=4, objective="elbo"),
        series("mpt", [90.0, 90.0, 90.0], seed=4, objective="mpt"),
    ]
    (axes,) = panels("fig3-linear-mnist", found)
    labels = {str(drawn.get_label()) for drawn in axes.get_lines()}
    names = {"LML, trained by MPT", "LML, trained by ELBO", "ELBO, trained by ELBO"}
    assert {label for label in labels if not label.startswith("_")} == names


def test_held_out_data_are_shown_alone_where_there_are_some() -> None:
    found = [series("lml", [1.0, 2.0, 3.0], seed=4), series("lml_heldout", [0.0, 1.0, 2.0], seed=4)]
    (axes,) = panels("fig3-vae-mnist", found)
    assert line(axes, "LML of held-out data") == [0.0, 1.0, 2.0]
    assert len(axes.get_lines()) == 1


def test_the_axis_leaves_out_the_beginning_and_covers_every_panel() -> None:
    first = [series("lml", [-900.0, 0.0, 10.0], seed=4)]
    second = [series("lml", [-900.0, 20.0, 30.0], seed=4)]
    for axes in panels("fig2-left", first, second):
        low, high = axes.get_ylim()
        assert low == pytest.approx(-1.0)
        assert high == pytest.approx(32.5)


def test_the_score_of_a_fixed_size_is_drawn_beside_the_lml() -> None:
    (axes,) = panels(
        "fig2-center", [series("lml", [1.0, 2.0, 2.5]), series("mpt", [3.0, 4.0, 4.5])]
    )
    assert line(axes, "MPT score") == [3.0, 4.0, 4.5]


def test_panels_say_in_what_they_differ() -> None:
    specs = [{"evaluate": {"masks": {"per_size": p, "schedule": "all"}}, "seeds": [p],
              "data": {"per_size": p}}
             for p in (1, 10)]  # fmt: skip
    curves = [[series("score", [-1.0, -2.0], [1.0, 2.0], seed=4)]] * 2
    titles = [axes.get_title() for axes in panels("table1", *curves, specs=specs)]
    assert titles == ["P = 1", "P = 10"]


def test_scores_of_the_baseline_and_of_epochs_are_left_out_of_a_curve() -> None:
    found = [
        series("score", [-1.0, -3.0], [1.0, 2.0], seed=4, model="model"),
        series("score", [-5.0, -5.0], [1.0, 2.0], seed=4, model="baseline"),
        series("score", [-7.0, -7.0], [1.0, 2.0], seed=4, epoch=0),
    ]
    (axes,) = panels("fig4-left", found)
    curve, zero = axes.get_lines()
    assert ys(curve) == [-1.0, -3.0]
    assert {*ys(zero)} == {0.0}
    assert axes.get_xlabel() == "mask size m"


def test_a_curve_is_drawn_for_each_epoch() -> None:
    found = [series("score", [-1.0 - e, -2.0], [1.0, 2.0], seed=s, epoch=e)
             for e in (0, 100) for s in (4, 44)]  # fmt: skip
    (axes,) = panels("fig5-left", found)
    assert line(axes, "epoch 0") == [-1.0, -2.0]
    assert line(axes, "epoch 100") == [-101.0, -2.0]


def test_published_figures_are_lines() -> None:
    found = [series("convergence", [7.0, 7.2], [1.0, 2.0], seed=s) for s in (4, 44)]
    (axes,) = panels("fig1-right", found, published={"bias": [7.29]})
    assert line(axes, "published bias") == [7.29, 7.29]
    assert line(axes, "seed 44") == [7.0, 7.2]


def test_the_bias_of_a_rate_is_drawn_over_sizes() -> None:
    found = [series("bias", [2.0, -4.0], [15.0, 90.0], seed=s) for s in (4, 44)]
    (axes,) = panels("unbiased-rate", found)
    assert ys(axes.get_lines()[2]) == [2.0, -4.0]


def figures(*comparisons: tuple[float | None, float, float | None, float | None]) -> Figure | None:
    rows = [
        {"what": f"figure {i}", "measured": measured, "half_width": half, "low": low, "high": high,
         "outcome": "agrees"}
        for i, (measured, half, low, high) in enumerate(comparisons)
    ]  # fmt: skip
    return picture({"name": "mask-designs", "specs": [], "published": {}}, [], rows)


def test_figures_are_drawn_with_their_intervals_and_bounds() -> None:
    figure = figures((2.0, 0.5, 1.0, None), (None, 0.0, 1.0, None), (0.1, 0.2, -1.0, 1.0))
    assert figure is not None
    first, second = figure.axes
    interval, point = first.get_lines()
    assert np.asarray(interval.get_xdata()).tolist() == [1.5, 2.5]
    assert np.asarray(point.get_xdata()).tolist() == [2.0]
    (span,) = first.patches
    assert span.get_x() == 1.0  # type: ignore[attr-defined]
    assert span.get_x() + span.get_width() == pytest.approx(first.get_xlim()[1])  # type: ignore[attr-defined]
    (both,) = second.patches
    assert (both.get_x(), both.get_width()) == (-1.0, 2.0)  # type: ignore[attr-defined]
    assert second.get_ylabel() == "figure 2"


def test_nothing_is_drawn_without_curves_and_figures() -> None:
    assert figures((None, 0.0, 1.0, None)) is None
    assert (
        picture({"name": "fig4-left", "specs": [{}], "published": {}}, [{"series": []}], []) is None
    )


def test_the_axis_of_a_training_leaves_out_its_beginning() -> None:
    values: list[float | None] = [*[-1000.0] * 4, *(-10.0 + i / 100 for i in range(97))]
    (axes,) = panels("fig2-left", [series("lml", values, seed=4)])
    low, high = axes.get_ylim()
    assert -12 < low < -9
    assert high > -9.04

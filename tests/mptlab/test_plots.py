"""The content of the figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex

from mptlab import Curves
from mptlab.plots import BAND, KINDS, draw, save

X = [1.0, 2.0, 3.0]
VALUE = [-3.0, -2.0, -1.0]
STD_ERR = [0.3, 0.2, 0.1]


def series(name: str, **labels: Any) -> dict[str, Any]:
    columns = {"x": X, "value": VALUE, "std_err": STD_ERR, "n": [1.0] * 3, "reasons": None}
    return {"name": name, "labels": labels, **columns}


def axes_of(kind: str | None, *found: dict[str, Any]) -> Axes:
    (axes,) = draw(found, kind, "a title").axes
    return axes


AXES = {
    "training": ("epoch", "nats per observation", "linear"),
    "convergence": ("masks of each size P", "MPT − LML, nats", "log"),
    "scores": ("mask size m", "score S(m), nats", "linear"),
    "area": ("mask size m", "score, nats", "linear"),
    "evolution": ("mask size m", "score, nats", "linear"),
    "comparison": ("mask size m", "model − baseline, nats", "linear"),
}
OF_KINDS = {name: names[0] for name, (_, names) in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_each_form_draws_the_series(kind: str) -> None:
    axes = axes_of(kind, series(OF_KINDS[kind], seed=4), series("other"))
    line = axes.lines[0]
    assert np.array_equal(np.asarray(line.get_xdata()), X)
    assert np.array_equal(np.asarray(line.get_ydata()), VALUE)
    assert axes.get_title() == "a title"
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == AXES[kind]
    has_zero = any(set(np.asarray(line.get_ydata())) == {0.0} for line in axes.lines)
    assert has_zero == (kind in ("area", "comparison", "convergence"))


def test_several_lines_have_a_legend() -> None:
    """A model is named without the word; one line needs no name."""
    assert axes_of("scores", series("score", seed=4)).get_legend() is None
    models = [series("score", model=model, seed=4) for model in ("model", "baseline")]
    legend = axes_of("scores", *models).get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["model, seed 4", "baseline, seed 4"]
    many = axes_of("scores", *(series("score", seed=seed) for seed in range(50)))
    assert many.get_legend() is None  # it would leave no room for the axes


@pytest.mark.parametrize("kind", ["scores", "area"])
def test_each_series_has_a_colour_of_its_own_with_its_fill(kind: str) -> None:
    axes = axes_of(kind, *(series(OF_KINDS[kind], seed=seed) for seed in (4, 5)))
    lines = [line for line in axes.lines if set(np.asarray(line.get_ydata())) != {0.0}]
    colors = {to_hex(line.get_color()) for line in lines}
    fills: list[Any] = [fill.get_facecolor() for fill in axes.collections]
    assert {to_hex(fill[0]) for fill in fills} == colors
    assert len(colors) == 2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "comparison"])
def test_bands_are_of_two_standard_errors(kind: str) -> None:
    axes = axes_of(kind, series(OF_KINDS[kind], seed=4))
    (path,) = axes.collections[0].get_paths()
    heights = np.asarray(path.vertices)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((-3.0 - BAND * 0.3, -1.0 + BAND * 0.1))


def test_paired_differences_have_their_errors() -> None:
    axes = axes_of("comparison", series("score_difference", seed=4))
    (bars,) = axes.collections
    assert isinstance(bars, LineCollection)
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    expected = [[v - BAND * e, v + BAND * e] for v, e in zip(VALUE, STD_ERR, strict=True)]
    assert ends == pytest.approx(np.array(expected))


def test_differences_by_rate_have_a_rate_on_their_axis() -> None:
    """The series of mask sizes and of masking rates share a name."""
    by_rate = axes_of("comparison", series("score_difference", seed=4) | {"x": [0.15, 0.5, 1.0]})
    assert by_rate.get_xlabel() == "masking rate"
    assert by_rate.get_ylabel() == "model − baseline, nats per token"


def test_missing_values_leave_a_gap() -> None:
    gap = series("score") | {"value": [-3.0, None, -1.0], "std_err": [None, None, 0.1]}
    assert np.isnan(np.asarray(axes_of("scores", gap).lines[0].get_ydata(), dtype=float)[1])


def test_scores_are_those_at_the_end_of_training() -> None:
    during = [series("score", epoch=epoch, seed=4) for epoch in (0, 10)]
    assert len(axes_of("scores", *during, series("score", seed=4)).lines) == 1
    evolution = axes_of("evolution", *during, series("score", seed=4))
    assert [line.get_label() for line in evolution.lines] == [
        "epoch 0, seed 4", "epoch 10, seed 4", "seed 4, at the end"
    ]  # fmt: skip
    assert len({line.get_color() for line in evolution.lines}) == 3


def test_the_lml_is_drawn_beside_the_objective() -> None:
    axes = axes_of(None, series("score"), series("mpt", seed=4), series("lml", seed=4))
    assert [(line.get_label(), line.get_linestyle()) for line in axes.lines] == [
        ("mpt seed 4", "-"), ("lml seed 4", "--")
    ]  # fmt: skip
    assert len({line.get_color() for line in axes.lines}) == 1


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("pie", "score", "pie is not a kind of figure: choose from training, convergence, scores"),
        ("area", "loss", "area needs the series score or score_by_rate, but there is only loss"),
        (None, "loss", "the experiment has no curves"),
    ],
)
def test_curves_that_cannot_be_drawn_give_a_readable_error(
    kind: str | None, name: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        draw([series(name)], kind)


def test_a_saved_figure_is_a_vector_graphic_with_text(tmp_path: Path) -> None:
    for name, begins in (("a.pdf", b"%PDF"), ("a.svg", b"<?xml")):
        figure = Curves([series("score", seed=4)], title="words").plot(file=tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert ">words</text>" in (tmp_path / "a.svg").read_text()
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"a\.odt is not a picture format"):
        save(figure, tmp_path / "a.odt")

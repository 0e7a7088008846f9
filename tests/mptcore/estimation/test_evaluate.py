"""The records of an evaluation, for models whose scores and grades are set by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import Evidence, Model
from mptcore.protocol.records import Log, Metric, Point, Record
from mptcore.runtime.state import RunState
from mptcore.specs.evaluate import MaskEvaluation
from tests.support.runs import metric, records_of, std_err_of, value_of

DIM = 3
TARGET = {"target_std_err": 1e-3, "max_masks": 400}


class Sampled(Model):
    """Scores −2 with an error of 1 from draws, a bias, and a share of doubtful weights."""

    device = torch.device("cpu")
    dim, bytes_per_mask = DIM, 1
    is_sampled = True
    advice = "raise draws"
    masks_scored = 0

    def __init__(self, bias: float = 0.5, doubtful: float = 0.0) -> None:
        self.bias, self.doubtful = bias, doubtful
        self.generator = torch.Generator().manual_seed(0)

    def scores(self, masks: Tensor) -> Tensor:
        return self.sampled_scores(masks, 0)[0]

    def sampled_scores(self, masks: Tensor, first: int) -> Tensor:
        self.masks_scored += len(masks)
        noise = torch.randn(len(masks), generator=self.generator, dtype=torch.float64)
        rest = [torch.full_like(noise, value) for value in (self.bias, self.doubtful, 1.0)]
        return torch.stack([noise - 2, *rest])

    def evidence(self) -> Evidence:
        return Evidence(-6.0)


class Exact(Model):
    """Scores −2."""

    device = torch.device("cpu")
    dim, bytes_per_mask = DIM, 1
    is_tractable = True
    masks_scored = 0

    def scores(self, masks: Tensor) -> Tensor:
        self.masks_scored += len(masks)
        return torch.full((len(masks),), -2.0, dtype=torch.float64)

    def joint_scores(self, masks: Tensor) -> Tensor:
        return torch.full((len(masks),), -3.0, dtype=torch.float64)

    def evidence(self) -> Evidence:
        return Evidence(-7.0)


def evaluated(models: dict[str, Model], **spec: Any) -> list[Record]:
    return evaluated_with(0, models, **spec)


def evaluated_with(seed: int, models: dict[str, Model], **spec: Any) -> list[Record]:
    evaluation = Evaluation(MaskEvaluation.model_validate(spec), models, {}, RunState())
    return records_of(evaluation.records(torch.Generator().manual_seed(seed)))


class Numbers(Model):
    """A mask's score is a multiple of the mask as a binary number whose first digit is the last
    one: 7, 14 and 7 in all, for masks of one, two and three dimensions."""

    device = torch.device("cpu")
    dim = DIM
    is_tractable = True

    def __init__(self, times: float = 1.0, bytes_per_mask: int = 1, least: int = 1) -> None:
        self.times, self._bytes, self._least = times, bytes_per_mask, least

    @property
    def bytes_per_mask(self) -> int:
        return self._bytes

    @property
    def efficient_batch(self) -> int:
        return self._least

    def scores(self, masks: Tensor) -> Tensor:
        return self.times * (masks.double() @ torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))

    def joint_scores(self, masks: Tensor) -> Tensor:
        return 100 * self.scores(masks)

    def evidence(self) -> Evidence:
        return Evidence(20.0)


def exactly(found: list[Record]) -> dict[str, tuple[float | None, float | None]]:
    """Value and error of each metric, named with its model where it has one."""
    return {
        " ".join([one.name, *(str(v) for k, v in one.labels.items() if k == "model")]): (
            one.value, one.std_err,
        )
        for one in found if isinstance(one, Metric)
    }  # fmt: skip


EVERY = {"schedule": "all", "design": "exhaustive"}


def test_all_masks_give_each_size_the_sum_and_its_difference_from_the_lml() -> None:
    found = evaluated({"model": Numbers()}, masks=EVERY, bias=True)
    scores = [("score", 1, 7 / 3, 3), ("score", 2, 14 / 3, 3), ("score", 3, 7.0, 1)]
    biases = [("bias", size, DIM * value - 20, n) for _, size, value, n in scores]
    points = [one for one in found if isinstance(one, Point)]
    expected = [one for pair in zip(scores, biases, strict=True) for one in pair]
    assert [(one.series, one.x, one.n) for one in points] == [(s, x, n) for s, x, _, n in expected]
    assert [one.value for one in points] == pytest.approx([value for *_, value, _ in expected])
    assert {(one.std_err, one.reason, len(one.labels)) for one in points} == {(0.0, None, 0)}
    metrics = exactly(found)
    assert [*metrics] == ["lml", "mpt", "difference"]
    assert metrics == {
        "lml": (20, 0), "mpt": (pytest.approx(14), 0), "difference": (pytest.approx(-6), 0),
    }  # fmt: skip


def test_a_baseline_is_scored_with_the_same_masks() -> None:
    models: dict[str, Model] = {"model": Numbers(), "baseline": Numbers(3)}
    found = evaluated(models, masks=EVERY)
    first = [one for one in found if isinstance(one, Point)][:3]
    assert [(one.series, one.labels) for one in first] == [
        ("score", {"model": "model"}), ("score", {"model": "baseline"}), ("score_difference", {}),
    ]  # fmt: skip
    assert [one.value for one in first] == pytest.approx([7 / 3, 7, -14 / 3])
    assert {name: value for name, (value, _) in exactly(found).items()} == {
        "lml model": 20, "mpt model": pytest.approx(14), "difference model": pytest.approx(-6),
        "lml baseline": 20, "mpt baseline": pytest.approx(42),
        "difference baseline": pytest.approx(22), "score_difference": pytest.approx(-28),
    }  # fmt: skip


def test_a_fixed_size_has_a_biased_score_and_a_joint_score() -> None:
    masks = {"schedule": "fixed", "size": 2, "design": "exhaustive"}
    assert exactly(evaluated({"model": Numbers()}, masks=masks)) == {
        "lml": (20, 0), "biased_score": (pytest.approx(14), 0), "bias": (pytest.approx(-6), 0),
        "joint_score": (pytest.approx(1400 / 3), 0),
    }  # fmt: skip
    mixed: dict[str, Model] = {"model": Numbers(), "baseline": Sampled(bias=0)}
    assert not any("joint" in name for name in exactly(evaluated(mixed, masks=masks)))


def test_listed_sizes_have_a_sum_only_with_a_target() -> None:
    masks = {"schedule": "sizes", "sizes": [1, 3]}
    assert exactly(evaluated({"model": Numbers()}, masks=masks)) == {"lml": (20, 0)}
    found = exactly(evaluated({"model": Numbers()}, masks=masks, **TARGET))
    assert found == {
        "masks": (4, 0), "target_reached": (1, 0), "lml": (20, 0),
        "score_sum": (pytest.approx(7 / 3 + 7), 0),
    }  # fmt: skip


@pytest.mark.parametrize("design", ["independent", "nested", "balanced"])
def test_masks_that_are_equal_by_chance_have_no_error_of_0(design: str) -> None:
    """Two masks of each size, for 40 seeds. The mask of all dimensions is the only one of its size,
    so its score is exact."""
    for seed in range(40):
        masks = {"schedule": "all", "per_size": 2, "design": design}
        found = evaluated_with(seed, {"model": Numbers()}, masks=masks, convergence=True)
        errors = {(one.series, one.x): one.std_err for one in found if isinstance(one, Point)}
        assert errors == {
            ("score", 1): None, ("score", 2): None, ("score", 3): 0,
            ("convergence", 1): None, ("convergence", 2): None,
        }  # fmt: skip
        assert metric(found, "mpt").std_err is None
        assert metric(found, "difference").std_err is None


def test_the_mask_of_all_dimensions_has_an_error_only_where_scores_are_sampled() -> None:
    masks = {"schedule": "fixed", "size": DIM, "per_size": 2}
    exact = exactly(evaluated({"model": Numbers()}, masks=masks, convergence=True))
    assert {error for _, error in exact.values()} == {0}
    assert (
        metric(evaluated({"model": Sampled(bias=0)}, masks=masks), "biased_score").std_err is None
    )


@pytest.mark.parametrize("schedule", [{"schedule": "all"}, {"schedule": "fixed", "size": 1}])
@pytest.mark.parametrize(("design", "enough"), [("independent", 12), ("nested", 29)])
def test_convergence_is_the_difference_after_each_mask(
    schedule: dict[str, Any], design: str, enough: int
) -> None:
    """Three scores of −2, or three times one, less an LML of −7. There is an error from the number
    of masks on that the design needs."""
    points = convergence_of(schedule, per_size=30, design=design)
    assert [(one.x, one.value, one.n) for one in points] == [(p, 1, p) for p in range(1, 31)]
    assert [one.std_err for one in points] == [*[None] * (enough - 1), *[0.0] * (31 - enough)]
    assert points[0].reason == "one draw gives no standard error"
    assert {one.reason for one in points[enough - 1 :]} == {None}
    too_few = [str(one.reason) for one in points[1 : enough - 1]]
    assert all("too few replicates" in reason for reason in too_few)


@pytest.mark.parametrize("schedule", [{"schedule": "all"}, {"schedule": "fixed", "size": 1}])
def test_convergence_has_no_errors_if_masks_depend_on_each_other(schedule: dict[str, Any]) -> None:
    points = convergence_of(schedule, per_size=4, design="balanced")
    assert {one.std_err for one in points} == {None}
    assert points[0].reason == "one draw gives no standard error"
    why = "masks of one permutation depend on each other"
    assert {one.reason for one in points[1:]} == {why}


def convergence_of(schedule: dict[str, Any], **masks: Any) -> list[Point]:
    found = evaluated({"model": Exact()}, masks={**schedule, **masks}, convergence=True)
    return [one for one in found if isinstance(one, Point) and one.series == "convergence"]


def test_never_final_scores_give_a_reason() -> None:
    model = Sampled(bias=0)
    model.not_final_reason = "not final: by recursion"
    found = evaluated({"model": model}, masks={"schedule": "all"}, bias=True, convergence=True)
    why = {one.reason for one in found if isinstance(one, Point)}
    assert why == {"not final: by recursion"}
    assert metric(found, "mpt").reason == metric(found, "difference").reason == why.pop()
    assert metric(found, "mpt_bias_estimate").value == metric(found, "mpt_doubtful").value == 0


def test_a_bias_within_its_error_may_be_quoted() -> None:
    """A width of 0.3 is allowed where the error is about 0.5; without an error 0.05 is too much."""
    found = evaluated({"model": Sampled(bias=0.1)}, masks={"schedule": "all", "per_size": 10})
    assert metric(found, "mpt").value is not None
    (bias,) = [one for one in found if isinstance(one, Metric) and one.name == "mpt_bias_estimate"]
    (doubt,) = [one for one in found if isinstance(one, Metric) and one.name == "mpt_doubtful"]
    assert bias.value == pytest.approx(0.3)
    assert (bias.std_err, bias.labels) == (0.0, {})
    assert doubt == Metric("mpt_doubtful", 0.0, 0.0, {})


@pytest.mark.parametrize("design", ["independent", "exhaustive"])
def test_doubtful_samples_widen_the_error(design: str) -> None:
    """Each term adds half a nat with the same sign: 3 · 0.04 / 2 in D · S(2)."""
    masks = {"schedule": "fixed", "size": 2, "design": design}
    masks |= {"per_size": 2000} if design == "independent" else {}
    sure, doubted = (
        std_err_of(metric(evaluated({"model": Sampled(0.0, share)}, masks=masks), "biased_score"))
        for share in (0.0, 0.04)
    )
    assert doubted == pytest.approx(math.hypot(sure, 0.06))


@pytest.mark.parametrize(("doubtful", "reached"), [(0.0, 1.0), (0.04, 0.0)])
def test_doubtful_samples_do_not_reach_a_target(doubtful: float, reached: float) -> None:
    """Three sizes with half a nat for 4 % of the terms are 0.06 nats, more than the target."""
    masks = {"schedule": "all"}
    spec = {"masks": masks, "target_std_err": 0.05, "max_masks": 20_000}
    found = evaluated({"model": Sampled(0.0, doubtful)}, **spec)
    assert metric(found, "target_reached").value == reached


def test_with_a_target_each_size_has_its_point() -> None:
    models: dict[str, Model] = {"model": Numbers(), "baseline": Numbers(3)}
    found = evaluated(models, masks={"schedule": "all"}, bias=True, **TARGET)
    points = [one for one in found if isinstance(one, Point)]
    each = ["score", "bias", "score", "bias", "score_difference"]
    assert [(one.x, one.series) for one in points] == [(m, s) for m in (1, 2, 3) for s in each]
    values = [7 / 3, 7 - 20, 7, 21 - 20, -14 / 3]
    assert [one.value for one in points[:5]] == pytest.approx(values)
    assert metric(found, "score_difference").value == pytest.approx(-28)


def test_the_sum_over_a_grid_is_as_final_as_the_lml_of_that_grid() -> None:
    """Their agreement is an identity of the grid, and proves nothing."""

    class OnGrid(Numbers):
        def evidence(self) -> Evidence:
            return Evidence(20.0, 0.0, "not final: few nodes")

    found = evaluated({"model": OnGrid()}, masks=EVERY, bias=True)
    reasons = {one.series: one.reason for one in found if isinstance(one, Point)}
    assert reasons == {"score": None, "bias": "not final: few nodes"}
    for name in ("lml", "mpt", "difference"):
        assert metric(found, name).reason == "not final: few nodes"


@pytest.mark.parametrize(("shift", "final"), [(0.0166, True), (0.0167, False), (math.nan, False)])
def test_a_score_that_depends_on_the_quadrature_is_not_final(shift: float, final: bool) -> None:
    """The change is larger than the share of 0.05 nats for one of three dimensions."""

    class OnGrid(Numbers):
        def grid_shift(self, size: int) -> float:
            return shift

    masks = {"schedule": "fixed", "size": 2, "design": "exhaustive"}
    found = evaluated({"model": OnGrid()}, masks=masks)
    assert (metric(found, "biased_score").value is not None) == final
    assert (metric(found, "joint_score").value is not None) == final
    assert {one.reason is None for one in found if isinstance(one, Point)} == {final}


@pytest.mark.parametrize(("shift", "final"), [(0.25, True), (1.5, False)])
@pytest.mark.parametrize(
    "spec",
    [{"masks": {"per_size": 50}}, {"target_std_err": 10.0, "max_masks": 400, "masks": {}}],
    ids=["all", "target"],
)
def test_d_times_a_score_moves_d_times_as_far(
    spec: dict[str, Any], shift: float, final: bool
) -> None:
    """Its error is about 10, and D = 12."""

    class OnGrid(Numbers):
        dim = 12

        def scores(self, masks: Tensor) -> Tensor:
            """A score that single dimensions do not predict."""
            return 6.0 - 12.0 * (masks[:, :6].sum(1) % 2).double()

        def grid_shift(self, size: int) -> float:
            return shift

    masks = {"schedule": "fixed", "size": 6, **spec["masks"]}
    found = evaluated({"model": OnGrid()}, **{**spec, "masks": masks})
    std_err = next(
        one.std_err
        for one in found
        if isinstance(one, Metric) and one.name in ("biased_score", "biased_score_not_final")
        if one.std_err is not None
    )
    assert 3 < std_err < 18
    assert (metric(found, "biased_score").value is not None) == final


@pytest.mark.parametrize("spec", [{"masks": {"schedule": "all", "per_size": 16}}, TARGET])
def test_only_the_size_with_doubtful_samples_is_not_final(spec: dict[str, Any]) -> None:
    class DoubtfulPairs(Sampled):
        def sampled_scores(self, masks: Tensor, first: int) -> Tensor:
            found = super().sampled_scores(masks, first)
            found[2] = (masks.sum(1) == 2).double()
            return found

    found = evaluated({"model": DoubtfulPairs(bias=0)}, **{"masks": {"schedule": "all"}, **spec})
    reasons = {one.x: one.reason for one in found if isinstance(one, Point)}
    assert [*reasons] == [1, 2, 3]
    assert "cannot be trusted" in (reasons[2] or "")
    assert reasons[1] is None
    assert reasons[3] is None


def test_the_lml_of_samples_makes_its_differences_doubtful() -> None:
    class Unconverged(Sampled):
        def evidence(self) -> Evidence:
            return Evidence(-6.0, 0.1, "not final: few samples")

    found = evaluated({"model": Unconverged(bias=0)}, masks={"schedule": "all"}, bias=True)
    reasons = {one.series: one.reason for one in found if isinstance(one, Point)}
    assert reasons == {"score": None, "bias": "not final: few samples"}
    assert metric(found, "mpt").value is not None
    assert metric(found, "difference").reason == "not final: few samples"


def test_a_note_on_a_model_is_the_first_record() -> None:
    model = Numbers()
    model.note = "by low rank"
    models: dict[str, Model] = {"model": Numbers(), "baseline": model}
    assert evaluated(models, masks=EVERY)[0] == Log("info", "model baseline: by low rank")


@pytest.mark.parametrize(
    ("sizes", "least", "memory", "batch"),
    [
        ((2**20, 2**20), (1, 1), None, 4),
        ((2**20, 2**21), (1, 1), None, 2),
        ((2**20, 2**20), (9, 9), None, 9),
        ((2**20, 2**20), (1, 9), None, 4),
        ((2**21, 2**10), (3, 1), None, 3),
        ((2**20, 2**20), (9, 9), 3 * 2**20 + 1, 3),
        ((2**20, 2**20), (9, 9), 5, 1),
    ],
)
def test_batches_of_masks_fit_the_memory(
    sizes: tuple[int, int], least: tuple[int, int], memory: int | None, batch: int
) -> None:
    models = {str(i): Numbers(1, *one) for i, one in enumerate(zip(sizes, least, strict=True))}
    spec = MaskEvaluation.model_validate({})
    assert Evaluation(spec, models, {}, RunState(), memory).batch == batch


def test_a_difference_from_the_lml_is_no_more_final_than_its_score() -> None:
    found = evaluated({"model": Sampled(bias=10)}, masks={"schedule": "all", "per_size": 10})
    for name in ("mpt", "difference"):
        assert metric(found, name).value is None
        assert str(metric(found, name).reason).startswith("not final: its estimated bias of 30")
    assert value_of(metric(found, "difference_not_final")) == pytest.approx(
        value_of(metric(found, "mpt_not_final")) + 6
    )
    found = evaluated({"model": Sampled(bias=0)}, masks={"schedule": "all", "per_size": 10})
    assert metric(found, "difference").value is not None


@pytest.mark.parametrize("target", [{}, TARGET])
def test_the_bias_of_a_fixed_size_is_d_times_its_score_minus_the_lml(
    target: dict[str, Any],
) -> None:
    masks = {"schedule": "fixed", "rate": 0.4, "per_size": 20}
    found = evaluated({"model": Sampled(bias=0.5)}, masks=masks, **target)
    assert metric(found, "biased_score_bias_estimate").value == pytest.approx(DIM * 0.5)
    assert metric(found, "biased_score").value is None


def test_sampled_masks_are_drawn_again_for_their_variance() -> None:
    """There are seven masks. One sampled model of two is enough to score them more than once."""
    masks = {"schedule": "all"}
    exact = Exact()
    evaluated({"model": exact}, masks=masks, **TARGET)
    assert exact.masks_scored <= 7
    sampled = Sampled()
    models: dict[str, Model] = {"model": sampled, "baseline": Exact()}
    evaluated(models, masks=masks, target="difference", **TARGET)
    assert 390 <= sampled.masks_scored <= 400


class BiasedAtTwo(Sampled):
    """Sampled scores of which those of two masked dimensions have a bias of 3 nats."""

    def sampled_scores(self, masks: Tensor, first: int) -> Tensor:
        rows = super().sampled_scores(masks, first)
        rows[1] = 3.0 * (masks.sum(1) == 2)
        return rows


@pytest.mark.parametrize("target", [{}, TARGET])
def test_each_size_has_the_bias_of_its_own_scores(target: dict[str, Any]) -> None:
    """For the model and for its difference from another, whether all sizes are scored in turn or in
    rounds."""
    models: dict[str, Model] = {"model": BiasedAtTwo(), "baseline": Exact()}
    records = evaluated(models, masks={"schedule": "all", "per_size": 20}, **target)
    final = {
        (record.series, record.x)
        for record in records
        if isinstance(record, Point)
        and record.labels.get("model") != "baseline"
        and not str(record.reason).startswith("not final")
    }
    assert final == {(series, x) for series in ("score", "score_difference") for x in (1, 3)}
    assert metric(records, "mpt_bias_estimate", model="model").value == pytest.approx(3)

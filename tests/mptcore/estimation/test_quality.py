"""Scores that are sampled: what is in doubt is never given as an estimate with an error."""

import pytest
import torch
from torch import Tensor

from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import Evidence, SampledModel, VectorModel
from mptcore.protocol.records import Metric, Point, Record
from mptcore.runtime.session import ScoreCache
from mptcore.specs import AllSizes, FixedSize
from mptcore.specs.evaluate import MaskEvaluation
from tests.support.runs import records_of, value_of

DIM = 6


class Sampled(SampledModel):
    """Scores around −1 with a known bias and share in doubt."""

    cure = "draw more"
    device = torch.device("cpu")

    def __init__(self, bias: float, share: float, lml: Evidence):
        self.bias, self.share, self.lml = bias, share, lml

    @property
    def dim(self) -> int:
        return DIM

    @property
    def bytes_per_mask(self) -> int:
        return 1

    def graded_scores(self, masks: Tensor) -> Tensor:
        scores = -1 + 0.01 * (masks.double() @ torch.arange(DIM).double() - 5)
        rest = torch.tensor([[self.bias], [self.share]]).double().expand(2, len(masks))
        return torch.cat([scores[None], rest])

    def evidence(self) -> Evidence:
        return self.lml


class Exact(VectorModel):
    """Scores of −2."""

    device = torch.device("cpu")
    dim = DIM
    bytes_per_mask = 1

    def scores(self, masks: Tensor) -> Tensor:
        return torch.full((len(masks),), -2.0, dtype=torch.float64)

    def evidence(self) -> Evidence:
        return Evidence(-2.0 * DIM)


FIXED = MaskEvaluation(masks=FixedSize(schedule="fixed", size=2, per_size=50))
ALL = MaskEvaluation(masks=AllSizes(per_size=50))
TARGET = MaskEvaluation(target_std_err=0.02, max_masks=5000)


def scored(spec: MaskEvaluation, **models: VectorModel) -> list[Record]:
    evaluation = Evaluation(spec, models, {}, ScoreCache())
    return records_of(evaluation.records(torch.Generator().manual_seed(1)))


def named(found: list[Record], name: str) -> Metric:
    return next(r for r in found if isinstance(r, Metric) and r.name == name)


@pytest.mark.parametrize(
    ("spec", "names"),
    [(FIXED, ("biased_score", "bias")), (ALL, ("mpt", "difference")), (TARGET, ("mpt",))],
    ids=["fixed", "all", "target"],
)
@pytest.mark.parametrize(
    ("bias", "share", "reason"),
    [(0.5, 0.0, "estimated bias of"), (0.0, 0.2, "weights of 20%"), (float("nan"), 0.0, "bias")],
)
def test_a_score_in_doubt_has_another_name(
    spec: MaskEvaluation, names: tuple[str, ...], bias: float, share: float, reason: str
) -> None:
    found = scored(spec, model=Sampled(bias, share, Evidence(-6.0)))
    for name in names:
        assert named(found, name).value is None
        assert reason in str(named(found, name).reason)
        assert "draw more" in str(named(found, name).reason)
        assert named(found, f"{name}_not_final").std_err is not None
    for point in found:
        if isinstance(point, Point) and point.series == "score":
            assert point.std_err is None
            assert reason in str(point.reason)


@pytest.mark.parametrize("spec", [FIXED, ALL, TARGET], ids=["fixed", "all", "target"])
def test_a_score_that_is_not_in_doubt_keeps_its_name(spec: MaskEvaluation) -> None:
    found = scored(spec, model=Sampled(1e-9, 0.09, Evidence(-6.0)))
    first = "biased_score" if spec is FIXED else "mpt"
    assert named(found, first).std_err is not None
    factor = DIM  # as a multiple of S(m), or as a sum over sizes
    assert value_of(named(found, f"{first}_bias_estimate")) == pytest.approx(factor * 1e-9)
    assert value_of(named(found, f"{first}_doubtful")) == pytest.approx(0.09)


def test_a_difference_from_an_lml_that_is_not_final_is_not_final() -> None:
    found = scored(FIXED, model=Sampled(0.0, 0.0, Evidence(-6.0, 0.1, "not final: so")))
    assert named(found, "biased_score").value is not None
    assert named(found, "bias").value is None
    assert named(found, "bias").reason == "not final: so"


def test_differences_from_an_exact_model_are_graded_too() -> None:
    for bias, final in ((0.0, True), (0.5, False)):
        models = {"model": Sampled(bias, 0.0, Evidence(-6.0)), "baseline": Exact()}
        found = scored(ALL, **models)
        assert (named(found, "score_difference").value is not None) == final
        points = [r for r in found if isinstance(r, Point) and r.series == "score_difference"]
        assert all((point.reason is None) == final for point in points[:-1])
        exact = [r for r in found if isinstance(r, Metric) and r.labels.get("model") == "baseline"]
        assert {r.name for r in exact} >= {"mpt", "difference", "lml"}
        assert all(r.value is not None for r in exact)

"""The records of an evaluation, for models whose scores and grades are set by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import Evidence, SampledModel, TractableModel, VectorModel
from mptcore.protocol.records import Record
from mptcore.runtime.session import ScoreCache
from mptcore.specs.evaluate import MaskEvaluation
from tests.support.runs import metric, records_of, value_of

DIM = 3
TARGET = {"target_std_err": 1e-3, "max_masks": 400}


class Sampled(SampledModel):
    """Scores −2 with an error of 1 from draws, a bias of 0.5, and no doubtful weights."""

    device = torch.device("cpu")
    dim, bytes_per_mask = DIM, 1
    cure = "raise draws"

    def __init__(self, bias: float = 0.5) -> None:
        self.bias = bias
        self.generator = torch.Generator().manual_seed(0)

    def graded_scores(self, masks: Tensor) -> Tensor:
        self.masks_scored += len(masks)
        noise = torch.randn(len(masks), generator=self.generator, dtype=torch.float64)
        rest = [torch.full_like(noise, value) for value in (self.bias, 0.0, 1.0)]
        return torch.stack([noise - 2, *rest])

    def evidence(self) -> Evidence:
        return Evidence(-6.0)


class Exact(TractableModel):
    """Scores −2."""

    device = torch.device("cpu")
    dim, bytes_per_mask = DIM, 1

    def scores(self, masks: Tensor) -> Tensor:
        self.masks_scored += len(masks)
        return torch.full((len(masks),), -2.0, dtype=torch.float64)

    def joint_scores(self, masks: Tensor) -> Tensor:
        raise NotImplementedError

    def log_marginal_likelihood(self) -> float:
        return -6.0


def evaluated(models: dict[str, VectorModel], **spec: Any) -> list[Record]:
    evaluation = Evaluation(MaskEvaluation.model_validate(spec), models, {}, ScoreCache())
    return records_of(evaluation.records(torch.Generator().manual_seed(0)))


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
def test_the_bias_of_one_fixed_size_is_that_of_d_times_its_score(target: dict[str, Any]) -> None:
    masks = {"schedule": "fixed", "rate": 0.4, "per_size": 20}
    found = evaluated({"model": Sampled(bias=0.5)}, masks=masks, **target)
    assert metric(found, "biased_score_bias_estimate").value == pytest.approx(DIM * 0.5)
    assert metric(found, "biased_score").value is None


def test_masks_whose_scores_vary_are_drawn_again() -> None:
    """There are seven masks. One sampled model of two is enough to score them more than once."""
    masks = {"schedule": "all"}
    exact = Exact()
    evaluated({"model": exact}, masks=masks, **TARGET)
    assert exact.masks_scored <= 7
    mixed: dict[str, VectorModel] = {"model": Sampled(), "baseline": Exact()}
    evaluated(mixed, masks=masks, target="difference", **TARGET)
    assert 390 <= mixed["model"].masks_scored <= 400

"""Effect of a training step on the parameters, and the errors of the recorded values."""

import math
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.calibration import ascent
from mptcore.data.dataset import Dataset
from mptcore.estimation.estimate import ONE_DRAW
from mptcore.families.vae.trainer import TrainingStart, VaeTrainer
from mptcore.specs import Importance, VaeTrain
from tests.support.runs import std_err_of, value_of
from tests.support.vaes import linear_gaussian, simulated


def start_of() -> TrainingStart:
    vae = linear_gaussian(Importance(method="importance"), exact=False)
    x, _ = simulated(vae, 30)
    return TrainingStart(0, "mpt", {"seed": 0}, vae, Dataset(x), x, None)


def test_fitting_the_encoder_does_not_change_the_decoder() -> None:
    """Otherwise the gradient of the ELBO would enter the objective mpt."""
    vae, x = start_of().vae, start_of().x
    masks = torch.arange(12)[None] < 4
    vae.score(x, masks, torch.Generator().manual_seed(1)).backward()  # type: ignore[no-untyped-call]
    before = [parameter.grad.clone() for parameter in vae.decoder.parameters()]  # type: ignore[union-attr]
    vae.fit_encoder(x, torch.Generator().manual_seed(2))
    assert vae.encoder is not None
    assert all(parameter.grad.norm() > 0 for parameter in vae.encoder.parameters())  # type: ignore[union-attr]
    after = [parameter.grad for parameter in vae.decoder.parameters()]
    for first, second in zip(before, after, strict=True):
        assert second is not None
        assert torch.equal(first, second)
    assert all(parameter.requires_grad for parameter in vae.decoder.parameters())


def test_the_error_of_the_elbo_is_calibrated() -> None:
    """Over 200 repeats: a spread of the points as large as their errors say."""
    start = start_of()
    spec = VaeTrain(objective=("mpt",), epochs=1)
    trainer = VaeTrainer(spec, [start], [0])
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        points = [trainer._elbo_point(start, generator) for _ in range(200)]
    told = math.sqrt(mean(std_err_of(point) ** 2 for point in points))
    assert 0.8 < stdev(map(value_of, points)) / told < 1.25
    assert all(point.n == 2 for point in points)


def trainer_of(objective: Any, **spec: Any) -> VaeTrainer:
    """Records of two starts."""
    starts = []
    for _ in range(2):
        vae = linear_gaussian(Importance(method="importance"), exact=False)
        x, _ = simulated(vae, 30)
        starts.append(TrainingStart(0, objective, {"seed": 0}, vae, Dataset(x), x, x[:7]))
    whole = VaeTrain(objective=(objective,), epochs=4, evaluate_every=3, lml_samples=4, **spec)
    return VaeTrainer(whole, starts, [0])


@pytest.mark.parametrize("objective", ["mpt", "elbo"])
def test_points_are_recorded_at_every_third_epoch_and_the_last(objective: str) -> None:
    """Each start records its objective, and the other measures of the same step."""
    trainer = trainer_of(objective)
    for epoch in range(5):
        trainer.epoch = epoch
        [(points, _)] = trainer.advance()
        names = ["loss", "mpt", "elbo", "lml", "lml_heldout"] * 2
        assert [point.series for point in points] == (names if epoch in (0, 3, 4) else [])
        assert {point.x for point in points} <= {epoch}
        for loss, mpt, *_ in (points[:5], points[5:]) if points else ():
            if objective == "mpt":
                assert value_of(loss) == -value_of(mpt)
            else:
                assert (loss.std_err, loss.reason) == (None, ONE_DRAW)


def test_a_step_split_for_memory_has_the_same_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = trainer_of("mpt")
    start, score = trainer.starts[0], trainer.starts[0].vae.score
    masks = torch.arange(12) < torch.tensor([[4], [7]])

    def refused(x: Tensor, part: Tensor, generator: torch.Generator) -> Tensor:
        value = score(x, part, generator)
        if len(part) > 1:
            raise torch.OutOfMemoryError
        return value

    def objective() -> float:
        return trainer._objective(start, start.x, masks, torch.Generator().manual_seed(3)).item()

    in_one_part = objective()
    monkeypatch.setattr(start.vae, "score", refused)
    assert objective() == pytest.approx(in_one_part, rel=1e-6)


@pytest.mark.parametrize(("batch_size", "steps"), [(None, 1), (10, 3), (20, 2)])
def test_an_epoch_scores_the_masks_of_its_steps_and_the_last_those_of_one(
    batch_size: int | None, steps: int
) -> None:
    masks = {"schedule": "fixed", "size": 3, "per_size": 2}
    trainer = trainer_of("mpt", batch_size=batch_size, masks=masks)
    before = [parameter.clone() for parameter in trainer.starts[0].vae.parameters()]
    trainer.epoch = 4
    assert trainer.advance()[0][1] == 2 * 2
    after = list(trainer.starts[0].vae.parameters())
    assert all(map(torch.equal, before, after))  # the last step is recorded, and not taken
    trainer.epoch = 1
    assert trainer.advance()[0][1] == 2 * 2 * steps
    assert not all(map(torch.equal, before, after))


@pytest.mark.parametrize(("size", "most"), [(3, 0.2), (6, 0.4)])
def test_a_step_ascends_the_score_that_it_records(size: int, most: float) -> None:
    """Compare the mean gradient of 16 steps with quadrature. With fixed weights it was 49 and 79 %
    off in norm."""
    vae, x = ascent.small_decoder()
    masks = ascent.masks_of(size, 2)
    truth = ascent.gradient(vae, ascent.true_score(vae, x, masks))
    found, error = ascent.mean_gradient(vae, x, masks, 16)
    assert error < 0.2 * truth.norm()
    assert (found - truth).norm() < most * truth.norm()

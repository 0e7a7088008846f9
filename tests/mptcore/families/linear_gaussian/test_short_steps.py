"""Several epochs by compiled loops are the same training as one epoch after the other."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.families.linear_gaussian import short_steps
from mptcore.families.linear_gaussian.moments import FactoredMoment
from mptcore.families.linear_gaussian.rounding import rounding
from mptcore.families.linear_gaussian.short_steps import epochs_at_once
from mptcore.families.linear_gaussian.step_gradient import KERNELS
from mptcore.families.linear_gaussian.trainer import NEVER
from mptcore.protocol.records import Point
from mptcore.runtime.compiled import kernels
from tests.mptcore.families.linear_gaussian.test_train import (
    BASE,
    FAMILIES,
    SCHEDULES,
    spec_of,
    trainer_of,
)

State = dict[str, Tensor]


def trained(spec: Any, calls: list[int] | None = None) -> tuple[list[Point], list[int], State]:
    """Return the points, the masks of each epoch and the state at the end. `calls` gets the number
    of epochs of each call."""
    trainer = trainer_of(spec)
    points, masks = [], []
    while trainer.epoch <= trainer.spec.epochs:
        epochs = trainer.advance()
        trainer.epoch += len(epochs)
        if calls is not None:
            calls.append(len(epochs))
        for of_epoch, scored in epochs:
            points += of_epoch
            masks.append(scored)
    return points, masks, {name: tensor.clone() for name, tensor in trainer.tensors().items()}


def assert_same(found: Any, expected: Any) -> None:
    points, masks, state = found
    assert masks == expected[1]
    assert len(points) == len(expected[0])
    for point, other in zip(points, expected[0], strict=True):
        assert point.value == pytest.approx(other.value, rel=1e-10)
        assert (point.series, point.x, point.std_err) == (other.series, other.x, other.std_err)
        assert (point.n, point.labels, point.reason) == (other.n, other.labels, other.reason)
    assert state.keys() == expected[2].keys()
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, expected[2][name], rtol=1e-9, atol=1e-11)


CHANGES: dict[str, dict[str, Any]] = {
    **{f"{masks['schedule']} sizes": {"train": {"masks": masks}} for masks in SCHEDULES},
    "learned noise": {"train": {"learn_noise_precision": True}},
    "held out": {"data": {**BASE["data"], "heldout": 0.3}, "train": {"evaluate_every": 3}},
    "curves": {"train": {"curve_at": [0, 5, 6, 11]}},
    "own data": {"data": {**BASE["data"], "seed": "run", "heldout": 0.3}},
    "eleven dimensions": {
        "data": {**BASE["data"], "dim": 11},
        "model": {**BASE["model"], "latent_dim": 4},
    },
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CHANGES)
def test_several_epochs_are_those_one_by_one(
    name: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks, generators, Adam's moments and all points are the same."""
    change, calls = CHANGES[name], list[int]()
    model = {**BASE["model"], **change.get("model", {}), "family": family}
    train = {"epochs": 30, "learning_rate": 0.1, **change.get("train", {})}
    spec = spec_of(**{**change, "model": model, "train": train})
    monkeypatch.setattr(short_steps, "MAX_EPOCHS", 7)
    several = trained(spec, calls)
    monkeypatch.setattr(short_steps, "MAX_EPOCHS", 0)
    assert_same(several, trained(spec))
    assert max(calls) > 1


def test_two_threads_train_as_one() -> None:
    spec = spec_of(train={"epochs": 30})
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(trained(spec))
    finally:
        torch.set_num_threads(before)
    assert found[0][:2] == found[1][:2]
    assert all(torch.equal(one, found[1][2][name]) for name, one in found[0][2].items())


def test_steps_stop_where_rounding_forbids_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One start of two stops, and the other goes back to the same epoch."""
    spec = spec_of(train={"epochs": 20, "learning_rate": 0.3})
    bounds = bounds_of(spec)
    largest = [max(map(max, bounds[1:epoch])) for epoch in range(3, 20)]
    stop, limit = next(
        (epoch, limit)
        for epoch, limit in enumerate(largest, start=3)
        if min(bounds[epoch]) < limit < max(bounds[epoch])
    )
    monkeypatch.setattr(short_steps, "LIMIT", limit)
    calls: list[int] = []
    several = trained(spec, calls)
    assert calls[:3] == [1, stop - 1, 1]
    monkeypatch.setattr(short_steps, "MAX_EPOCHS", 0)
    assert_same(several, trained(spec))


def test_a_first_step_that_only_the_loops_forbid_is_taken_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their bound may differ from the earlier one by its last digit."""
    spec = spec_of(train={"epochs": 4})
    monkeypatch.setattr(short_steps, "LIMIT", 0.0)
    monkeypatch.setattr(short_steps.ShortSteps, "keep_digits", lambda _: True)
    calls: list[int] = []
    alone = trained(spec, calls)
    assert set(calls) == {1}
    monkeypatch.setattr(short_steps, "MAX_EPOCHS", 0)
    assert_same(trained(spec), alone)


def bounds_of(spec: Any) -> list[list[float]]:
    """The bounds of rounding of both starts, epoch by epoch."""
    loops = kernels(KERNELS)
    assert loops is not None
    trainer, found = trainer_of(spec), []
    trainer._at_once = 0
    while trainer.epoch <= trainer.spec.epochs:
        densities = trainer.densities()
        diagonal = trainer._full.moment.diagonal[0].numpy()
        found.append(
            [
                loops.rounding(d.loadings.numpy(), d.noise_variance.numpy(), diagonal)
                for d in densities
            ]
        )
        trainer.advance()
        trainer.epoch += 1
    return found


def test_the_bound_of_rounding_is_at_least_the_exact_one() -> None:
    """It is the same if all loadings have one direction."""
    loops = kernels(KERNELS)
    assert loops is not None
    generator = torch.Generator().manual_seed(1)
    for latent_dim in (1, 3):
        loadings = torch.randn(6, latent_dim, generator=generator, dtype=torch.float64)
        noise, data = torch.rand(2, 6, generator=generator, dtype=torch.float64)
        found = loops.rounding(loadings.numpy(), noise.numpy(), data.numpy())
        exact = float(rounding(loadings, noise, data))
        assert exact <= found * (1 + 1e-12)
        assert (found < exact * (1 + 1e-12)) == (latent_dim == 1)


def test_small_noise_is_trained_epoch_by_epoch() -> None:
    model = {**BASE["model"], "noise_precision": 1e9}
    spec = spec_of(model=model, train={"epochs": 3})
    trainer = trainer_of(spec)
    for epoch in range(3):
        assert len(trainer.advance()) == 1
        trainer.epoch = epoch + 1
    assert trainer.by_residuals_from != NEVER
    assert trainer._at_once == 0


@pytest.mark.parametrize(
    "train",
    [
        {"objective": "lml"},
        {"batch_size": 10},
        {"learn_mean": True},
    ],
    ids=str,
)
def test_other_steps_are_taken_one_by_one(train: dict[str, Any]) -> None:
    assert trainer_of(spec_of(train=train))._at_once == 0
    assert trainer_of(spec_of())._at_once > 1


def test_work_at_once_is_limited() -> None:
    """A table of 3 + 4 products for each of ten dimensions. One thread trains a start."""
    factor = torch.ones(1, 10, 2).double()
    moment = FactoredMoment(factor, factor.square().sum(-1))

    def at_once(starts: int, masks: int) -> int:
        return epochs_at_once(torch.ones(starts, 10, 2).double(), moment, masks)

    most = 2**19 // 70
    assert at_once(2, 10) == 64
    assert at_once(1, most) == 32
    assert at_once(3, most) == 10
    assert at_once(100, most) == 2
    assert at_once(1, most + 1) == 0


def test_the_last_digits_do_not_depend_on_the_epochs_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where one epoch is left before a curve."""
    spec, found = spec_of(train={"epochs": 12, "curve_at": [7]}), []
    for max_epochs in (1, 3, 64):
        monkeypatch.setattr(short_steps, "MAX_EPOCHS", max_epochs)
        found.append(trained(spec))
    for points, _, state in found[1:]:
        assert points == found[0][0]
        assert all(torch.equal(tensor, found[0][2][name]) for name, tensor in state.items())


def test_torch_trains_epoch_by_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPT_KERNELS", "torch")
    kernels.cache_clear()
    try:
        assert trainer_of(spec_of())._at_once == 0
    finally:
        monkeypatch.undo()
        kernels.cache_clear()

"""The masks of a training step by hand: each covers the places of its smallest keys."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.runtime.rng import generator_for
from mptcore.specs.train import EpochSchedule
from mptcore.training.step_masks import StepMasks

DIM = 5
SEEDS = (4, 44)


def step_masks(**masks: Any) -> StepMasks:
    spec = EpochSchedule.model_validate({"epochs": 9, "masks": masks})
    return StepMasks(spec, DIM, SEEDS)


def generators() -> list[torch.Generator]:
    return [generator_for(seed, "train masks") for seed in SEEDS]


def masks_of(sizes: list[int], generator: torch.Generator) -> Tensor:
    """In the order of the sizes, (masks, D)."""
    keys = torch.rand((len(sizes), DIM), generator=generator, dtype=torch.float64)
    masks = torch.zeros(len(sizes), DIM, dtype=torch.bool)
    for mask, own, size in zip(masks, keys, sizes, strict=True):
        mask[own.argsort()[:size]] = True
    return masks


def test_masks_for_another_step_than_the_next_are_drawn_again() -> None:
    """After a ramp has gone on, and after the generators were restored."""
    plain, prefetching = (
        step_masks(schedule="ramp", start=0.2, end=1.0, per_size=2) for _ in range(2)
    )

    def prefetch(fraction: float) -> None:
        with prefetching.prefetch([fraction]) as calls:
            for call in calls:
                call()

    prefetch(0.1)
    assert torch.equal(prefetching.draw([0.9])[:, 0], plain.draw([0.9])[:, 0])
    prefetch(0.9)
    for one, other in zip(*(m.generators().values() for m in (prefetching, plain)), strict=True):
        other.manual_seed(7)
        one.set_state(other.get_state())
    assert torch.equal(prefetching.draw([0.9])[:, 0], plain.draw([0.9])[:, 0])


FRACTIONS = [0.1, 0.5, 0.9]


@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule": "all", "per_size": 2},
        {"schedule": "uniform", "per_size": 3},
        {"schedule": "ramp", "start": 0.2, "end": 1.0, "per_size": 2},
    ],
    ids=lambda schedule: str(schedule["schedule"]),
)
def test_masks_of_several_steps_are_those_of_each(schedule: dict[str, Any]) -> None:
    """Also if they are drawn in advance; then the generators stay where they were."""
    plain, several = step_masks(**schedule), step_masks(**schedule)
    for _ in range(2):
        expected = torch.stack([plain.draw([fraction])[:, 0] for fraction in FRACTIONS], dim=1)
        before = several.states()
        with several.prefetch(FRACTIONS) as calls:
            assert len(calls) == 2
            for call in reversed(calls):
                call()
        assert all(map(torch.equal, before, several.states()))
        assert torch.equal(several.draw(FRACTIONS), expected)
        expected = torch.stack([plain.draw([fraction])[:, 0] for fraction in FRACTIONS], dim=1)
        assert torch.equal(several.draw(FRACTIONS), expected)
    with several.prefetch(FRACTIONS) as calls:
        for call in calls:
            call()
    assert torch.equal(several.draw([0.1])[:, 0], plain.draw([0.1])[:, 0])


def test_no_steps_ahead_need_no_masks() -> None:
    several, plain = step_masks(schedule="all"), step_masks(schedule="all")
    with several.prefetch([]) as calls:
        assert calls == []
    assert torch.equal(several.draw([0.1])[:, 0], plain.draw([0.1])[:, 0])


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [
        ({"schedule": "all", "per_size": 2}, [1, 2, 3, 4, 5]),
        ({"schedule": "fixed", "size": 3, "per_size": 1}, [3]),
        ({"schedule": "ramp", "start": 0.2, "end": 1.0, "per_size": 2}, [3]),
    ],
)
def test_masks_of_given_sizes(schedule: dict[str, Any], sizes: list[int]) -> None:
    """Halfway through the training. The P masks of each size are adjacent."""
    drawn, per_size = step_masks(**schedule), schedule["per_size"]
    own = generators()
    for _ in range(2):  # a step continues where the previous one ended
        order = [size for size in sizes for _ in range(per_size)]
        expected = torch.stack([masks_of(order, generator) for generator in own])
        assert torch.equal(drawn.draw([0.5])[:, 0], expected)


@pytest.mark.parametrize("per_size", [1, 3])
def test_a_uniform_size_is_drawn_for_each_step(per_size: int) -> None:
    drawn, seen = step_masks(schedule="uniform", per_size=per_size), set[int]()
    own = generators()
    for _ in range(40):
        for masks, generator in zip(drawn.draw([0.0])[:, 0], own, strict=True):
            size = int(torch.randint(1, DIM + 1, (1,), generator=generator))
            seen.add(size)
            assert torch.equal(masks, masks_of([size] * per_size, generator))
    assert seen == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(("fraction", "size"), [(0.0, 1), (0.49, 2), (0.5, 3), (1.0, 5)])
def test_a_ramp_s_size_follows_the_training(fraction: float, size: int) -> None:
    masks = step_masks(schedule="ramp", start=0.2, end=1.0, per_size=1).draw([fraction])[:, 0]
    assert masks.sum(-1).tolist() == [[size], [size]]


def test_generators_follow_the_order_of_their_seeds() -> None:
    found = step_masks(schedule="uniform").generators()
    assert [found[f"masks/{i}"].initial_seed() for i in range(2)] == [
        generator.initial_seed() for generator in generators()
    ]
    assert len(found) == 2

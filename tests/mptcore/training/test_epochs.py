"""The training loop with a trainer that records its calls."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.protocol.records import Log, Point, Record, Stage
from mptcore.runtime.state import Records, RunState, TrainingState
from mptcore.training.adam import Adam
from mptcore.training.learned import Learned
from mptcore.training.loop import DivergedError, Trained, diverged, train
from mptcore.training.step_points import lml_loss, score_of_step


@dataclass
class Three:
    """The schedule: three epochs, with curves at the first and the last."""

    length: int = 3
    unit: Any = "epochs"
    curve_at: tuple[int, ...] = (0, 3)


@dataclass
class Counting:
    """Trains nothing; each odd epoch has no points."""

    schedule: Three = field(default_factory=Three)
    epoch: int = 0
    fails_at: int | None = None
    restored: Mapping[str, Tensor] | None = None

    def heldout_points(self) -> list[Point]:
        return [point("loss_heldout", self.epoch)]

    def advance(self) -> list[Trained]:
        points = [] if self.epoch % 2 else [point("loss", self.epoch), point("lml", self.epoch)]
        if self.epoch == self.fails_at:
            raise diverged(self.epoch, [4, 44, 4], points, torch.float32)
        return [(points, 10)]

    def tensors(self) -> dict[str, Tensor]:
        return {"parameter/w": torch.tensor(self.epoch), "optimizer/0/step": torch.tensor(1)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.restored = tensors


def point(name: Any, epoch: int) -> Point:
    return Point(name, epoch, 0.0, 0.0, 0, {})


def curves(epoch: int) -> Records[None]:
    yield Log("info", f"curve {epoch}")


Seen = list[tuple[Record | None, int]]
"""Each record, or None, with the number of masks since the one before."""


def watched(records: Records[None], state: RunState) -> Iterator[tuple[Record | None, int]]:
    before = state.masks
    for record in records:
        yield record, state.masks - before
        before = state.masks


def told(seen: Seen) -> list[Any]:
    """Return the names and masks of those that have either."""
    names = [
        f"{record.series} {record.x:g}" if isinstance(record, Point) else
        record.message if isinstance(record, Log) else None
        for record, _ in seen
    ]  # fmt: skip
    return [(name, masks) for name, (_, masks) in zip(names, seen, strict=True) if name or masks]


WHOLE: list[Any] = [
    ("loss_heldout 0", 0), ("curve 0", 0), ("loss 0", 10), ("lml 0", 0),
    ("loss_heldout 1", 0), (None, 10),
    ("loss_heldout 2", 0), ("loss 2", 10), ("lml 2", 0),
    ("loss_heldout 3", 0), ("curve 3", 0), (None, 10),
]  # fmt: skip


def test_an_epoch_is_heldout_points_then_curves_then_training() -> None:
    trainer, state = Counting(), RunState()
    found: Seen = []
    stages = []
    for record, masks in watched(train(trainer, state, None, curves), state):
        found.append((record, masks))
        is_safe = record is None and masks == 0
        assert state.at_safe_point == is_safe
        if is_safe:
            assert state.training is not None
            training = state.training()
            assert training.epoch == trainer.epoch
            assert set(training.tensors) == {"parameter/w", "optimizer/0/step"}
        stages.append(state.stage)
    assert told(found) == WHOLE
    assert stages[0] == Stage("training", 0, 3, "epochs")
    assert stages[1:3] == [stages[0]] * 2
    assert stages[3] == Stage("training", 1, 3, "epochs")
    assert stages[-1] == Stage("training", 3, 3, "epochs")
    assert state.stage is None


class InPairs(Counting):
    """Trains epochs 1 and 2 at once."""

    def advance(self) -> list[Trained]:
        own = super().advance()
        return [*own, ([point("loss", 2)], 10)] if self.epoch == 1 else own


def test_epochs_trained_at_once_are_told_one_by_one() -> None:
    """Between them is no safe point, as the training is already that after both."""
    state, found, safe, done = RunState(), Seen(), [], []
    for record, masks in watched(train(InPairs(), state, None, curves), state):
        found.append((record, masks))
        if masks:
            done.append(state.stage and state.stage.done)
        if state.at_safe_point:
            assert state.training is not None
            safe.append(state.training().epoch)
    whole = [*WHOLE[:6], ("loss 2", 10), *WHOLE[9:]]
    assert told(found) == whole
    assert done == [1, 2, 3, 3]
    assert safe == [0, 1, 3]


def test_the_optimizer_is_dropped_after_training() -> None:
    trainer, state = Counting(), RunState(seq=7, masks=40)
    list(train(trainer, state, None, curves))
    assert state.training is not None
    training = state.training()
    assert (training.epoch, training.seq, training.masks, training.plans) == (4, 7, 80, ())
    assert set(training.tensors) == {"parameter/w"}
    state.seq = 9
    assert state.training() is training


def test_a_resumed_training_continues_from_its_epoch() -> None:
    trainer, state = Counting(), RunState()
    resumed = TrainingState(2, 9, 20, (), {"parameter/w": torch.tensor(2)})
    work = train(trainer, state, resumed, curves)
    assert next(work) is None
    assert state.masks == 20
    assert state.seq == 0  # the masks are counted before the records
    assert trainer.restored == resumed.tensors
    assert told([*watched(work, state)]) == WHOLE[6:]
    assert state.seq == 9


def test_diverging_training_records_the_points_of_its_epoch_first() -> None:
    found, state = Seen(), RunState()
    with pytest.raises(DivergedError) as error:
        found.extend(watched(train(Counting(fails_at=2), state, None, curves), state))
    assert error.value.cause == "error"
    assert str(error.value) == (
        "the loss of seed 4, 44 is not finite at epoch 2: lower train.learning_rate, or use "
        "precision float64"
    )
    assert told(found) == [*WHOLE[:7], ("loss 2", 0), ("lml 2", 0)]


def test_the_score_of_a_single_step_has_no_error_but_a_reason() -> None:
    found = score_of_step("mpt", 3, -2.5, 12, {"seed": 4})
    assert (found.series, found.x, found.value) == ("mpt", 3, -2.5)
    assert (found.std_err, found.n, found.labels) == (None, 12, {"seed": 4})
    assert found.reason == "the masks of one step"
    some = lml_loss(3, 2.5, 20, {"seed": 4})
    assert some == Point("loss", 3, 2.5, None, 20, {"seed": 4}, "the observations of one step")
    assert lml_loss(3, 2.5, None, {"seed": 4}) == Point("loss", 3, 2.5, 0.0, 0, {"seed": 4})


def learned(seed: int) -> Learned:
    weight = torch.nn.Parameter(torch.full((3,), float(seed)))
    generator = torch.Generator().manual_seed(seed)
    optimizer = Adam([weight], lr=0.1)
    return Learned({"w": weight}, optimizer, {"masks": generator})


def stepped(one: Learned) -> list[float]:
    weight = one.parameters["w"]
    weight.grad = torch.rand(3, generator=one.generators["masks"])
    one.optimizer.step()
    values: list[float] = weight.tolist()
    return values


def test_weights_optimizer_and_generators_are_restored() -> None:
    first, second = learned(1), learned(2)
    fresh = {name: tensor.clone() for name, tensor in first.tensors().items()}
    assert set(fresh) == {"parameter/w", "generator/masks"}
    stepped(first)
    kept = {name: tensor.clone() for name, tensor in first.tensors().items()}
    assert {"parameter/w", "generator/masks", "optimizer/0/exp_avg"} < set(kept)
    second.restore(kept)
    assert stepped(second) == stepped(first)
    third = learned(3)
    third.restore(fresh)  # before the first step there are no moments
    assert stepped(third) == stepped(learned(1))

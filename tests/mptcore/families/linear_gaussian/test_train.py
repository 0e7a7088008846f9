"""Training: gradients, schedules, the ceiling, records, saved weights."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mptcore.data.dataset import Dataset, load_arrays
from mptcore.estimation.evaluate import Evaluation
from mptcore.families.linear_gaussian import short_steps
from mptcore.families.linear_gaussian.initial import closed_form, initial_density
from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    FactoredMoment,
    data_factor,
    of_factor,
    second_moment,
)
from mptcore.families.linear_gaussian.trainer import LinearGaussianTrainer, _Centred
from mptcore.protocol.records import Artifact, Metric, Point, Record, RunError
from mptcore.run import resumable, run
from mptcore.runtime.rng import generator_for
from mptcore.runtime.state import RunState
from mptcore.specs import LinearGaussianExperiment, parse_spec
from mptlab_contract import records as run_records
from tests.support.runs import value_of

BASE: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    "data": {"source": "ppca", "n": 40, "dim": 6, "latent_dim": 2, "noise_precision": 5.0},
    "train": {"epochs": 3},
    "evaluate": {"masks": {"schedule": "all", "per_size": 2}},
    "seeds": [4, 44],
    "compute": {"threads": 1},
}
FAMILIES = ["ppca", "factor_analysis"]
SCHEDULES: list[dict[str, Any]] = [
    {"schedule": "all", "per_size": 2},
    {"schedule": "uniform", "per_size": 3},
    {"schedule": "fixed", "rate": 0.4, "per_size": 4},
    {"schedule": "rates", "rates": [0.2, 0.5, 1], "per_size": 2},
    {"schedule": "ramp", "start": 0.2, "end": 0.9, "per_size": 2},
]


def spec_of(**changes: Any) -> LinearGaussianExperiment:
    value = {**BASE, **changes}
    value["train"] = {**BASE["train"], **changes.get("train", {})}
    return LinearGaussianExperiment.model_validate(value)


def trainer_of(spec: LinearGaussianExperiment) -> LinearGaussianTrainer:
    assert spec.train is not None
    datasets = [data_of(spec, 0)] * len(spec.seeds)
    if spec.data.seed == "run":
        datasets = [data_of(spec, seed) for seed in spec.seeds]
    starts = [
        initial_density(spec.model, dataset, seed, generator_for(seed, "init"))
        for seed, dataset in zip(spec.seeds, datasets, strict=True)
    ]
    return LinearGaussianTrainer(
        spec.model,
        spec.train,
        spec.seeds,
        starts,
        datasets,
        torch.device("cpu"),
    )


def data_of(spec: LinearGaussianExperiment, seed: int) -> Dataset:
    return load_arrays(spec.data, seed, torch.Generator().manual_seed(seed))


def series(records: list[Record], name: str) -> dict[int, list[Point]]:
    """The points of a series, by seed."""
    found: dict[int, list[Point]] = {}
    for record in records:
        if isinstance(record, Point) and record.series == name and "epoch" not in record.labels:
            found.setdefault(int(record.labels["seed"]), []).append(record)
    return found


@pytest.mark.parametrize("learn_mean", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("masks", SCHEDULES, ids=lambda m: str(m["schedule"]))
def test_the_loss_is_the_direct_score_of_the_same_masks(
    family: str, masks: dict[str, Any], learn_mean: bool
) -> None:
    """The loss of one start does not depend on other starts."""
    model = {**BASE["model"], "family": family}
    trainer = trainer_of(spec_of(model=model, train={"masks": masks, "learn_mean": learn_mean}))
    x = trainer._datasets[0].x
    drawn: list[torch.Tensor] = []
    draw = trainer._masks
    trainer._masks = lambda fraction: drawn.append(draw(fraction)) or drawn[-1]  # type: ignore[method-assign, func-returns-value]
    loss = trainer._descent(trainer._full, 0.5)
    for i, density in enumerate(trainer.densities()):
        scores = [density.conditional_log_probs(x, mask).mean() for mask in drawn[0][i]]
        expected = -6 * torch.stack(scores).mean().item()
        assert loss[i].item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("learn_mean", [False, True])
@pytest.mark.parametrize("objective", ["mpt", "lml"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_finite_differences(
    family: str, objective: str, learn_mean: bool
) -> None:
    """The gradient is analytic if the mean is fixed, and from autograd if it is learned."""
    model = {**BASE["model"], "family": family}
    train = {"objective": objective, "learn_mean": learn_mean, "learn_noise_precision": True}
    trainer = trainer_of(spec_of(model=model, train=train))
    if objective == "mpt":
        masks = trainer._masks(0)
        trainer._masks = lambda fraction: masks  # type: ignore[method-assign]
    trainer._descent(trainer._full, 0)
    for parameter, found in [(one, one.grad) for one in trainer.parameters.values()]:
        assert found is not None
        flat, gradient = parameter.detach().view(-1), found.flatten()
        for i in range(0, len(flat), 3):
            values = []
            for step in (1e-5, -2e-5):
                flat[i] += step
                values.append(trainer._descent(trainer._full, 0).sum().item())
            flat[i] += 1e-5
            assert gradient[i].item() == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-6)


def test_lml_training_reaches_the_closed_form() -> None:
    train = {"objective": "lml", "epochs": 1500, "learning_rate": 0.02, "learn_mean": True}
    train |= {"learn_noise_precision": True, "evaluate_every": 100}
    spec = spec_of(train=train)
    reached = series(list(run(spec)), "lml")
    x = load_arrays(spec.data, 0, torch.Generator().manual_seed(0)).x
    ceiling = closed_form(second_moment(x, x.mean(0)), x.mean(0), 2)
    highest = ceiling.log_prob(x).mean().item()
    for points in reached.values():
        last = points[-1].value
        assert last is not None
        assert highest - 1e-3 < last < highest + 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_start_has_the_mean_of_the_data(family: str) -> None:
    """Digits are 0 to 16: about the mean 0 the closed form is out of reach, by nats."""
    model = {"family": family, "latent_dim": 10, "noise_precision": 0.1, "init": "random"}
    train = {"objective": "lml", "epochs": 300, "learning_rate": 0.1, "evaluate_every": 300}
    masks = {"schedule": "fixed", "size": 1, "per_size": 1}
    value = {"model": model, "data": {"source": "digits", "heldout": 0.2}, "train": train}
    spec = spec_of(**value, evaluate={"masks": masks}, seeds=[4])
    data = load_arrays(spec.data, 0, torch.Generator())
    assert torch.equal(trainer_of(spec).densities()[0].mean, data.x.mean(0))
    reached = series(list(run(spec)), "lml")[4][-1].value
    centre = data.x.mean(0)
    ceiling = closed_form(second_moment(data.x, centre), centre, 10, 0.1)
    assert reached == pytest.approx(ceiling.log_prob(data.x).mean().item(), abs=0.05)


@pytest.mark.parametrize("masks", SCHEDULES, ids=lambda m: str(m["schedule"]))
def test_every_schedule_raises_the_likelihood(masks: dict[str, Any]) -> None:
    spec = spec_of(train={"masks": masks, "epochs": 150, "learning_rate": 0.02})
    for points in series(list(run(spec)), "lml").values():
        first, last = points[0].value, points[-1].value
        assert first is not None
        assert last is not None
        assert last > first + 0.5


def test_epochs_are_recorded_from_before_the_first_step_to_the_last() -> None:
    records = list(run(spec_of(train={"epochs": 10, "evaluate_every": 4})))
    for name in ("loss", "mpt", "lml"):
        for points in series(records, name).values():
            assert [point.x for point in points] == [0, 4, 8, 10]
    first = series(records, "lml")[44][0].value
    start = trainer_of(spec_of()).densities()[1]
    x = load_arrays(spec_of().data, 0, torch.Generator().manual_seed(0)).x
    assert first == pytest.approx(start.log_prob(x).mean().item(), abs=1e-10)


def test_a_seed_trains_the_same_alone_and_in_a_batch() -> None:
    together = series(list(run(spec_of(train={"epochs": 20}))), "lml")[44]
    alone = series(list(run(spec_of(train={"epochs": 20}, seeds=[44]))), "lml")[44]
    assert [p.value for p in alone] == pytest.approx([p.value for p in together], abs=1e-10)


def test_curves_during_training_have_their_epoch_as_label() -> None:
    spec = spec_of(train={"curve_at": [0, 2]})
    points = [record for record in run(spec) if isinstance(record, Point) and record.x == 1]
    labels = [point.labels for point in points if point.series == "score"]
    assert labels == [
        *({"seed": seed, "epoch": epoch} for epoch in (0, 2) for seed in (4, 44)),
        *({"seed": seed} for seed in (4, 44)),
    ]


def test_the_loss_is_the_negative_score() -> None:
    records = list(run(spec_of(train={"epochs": 2})))
    for seed in (4, 44):
        loss, score = (series(records, name)[seed] for name in ("loss", "mpt"))
        assert [point.value for point in score] == [-value_of(point) for point in loss]


def test_the_loss_of_the_likelihood_is_exact() -> None:
    records = list(run(spec_of(train={"epochs": 2, "objective": "lml"})))
    for seed in (4, 44):
        loss, lml = (series(records, name)[seed] for name in ("loss", "lml"))
        assert [value_of(p) for p in loss] == pytest.approx([-value_of(p) for p in lml])
        assert {point.std_err for point in loss} == {0}
    assert series(records, "mpt") == {}


def test_a_resumed_training_does_not_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[int] = []
    advance = LinearGaussianTrainer.advance

    def counted(self: LinearGaussianTrainer) -> Any:
        epochs.append(self.epoch)
        return advance(self)

    monkeypatch.setattr(LinearGaussianTrainer, "advance", counted)
    monkeypatch.setattr(short_steps, "MAX_EPOCHS", 2)
    spec = spec_of(train={"epochs": 6})
    first = run_records(spec, tmp_path, stop_after=14)
    assert epochs == [0, 1]
    assert first + run_records(spec, tmp_path) == run_records(spec, tmp_path / "other")
    assert epochs[2:] == [3, 5, 6, 0, 1, 3, 5, 6]


@pytest.mark.parametrize("memory_mib", [None, 3])
def test_masks_are_scored_within_the_given_memory(
    monkeypatch: pytest.MonkeyPatch, memory_mib: int | None
) -> None:
    asked: list[int | None] = []

    class Asked(Evaluation):
        def records(self, generator: torch.Generator) -> Any:
            asked.append(self.memory_bytes)
            return super().records(generator)

    monkeypatch.setattr("mptcore.families.linear_gaussian.run.Evaluation", Asked)
    list(run(spec_of(train={"epochs": 1}, compute={"threads": 1, "memory_mib": memory_mib})))
    assert asked == [memory_mib and memory_mib * 2**20] * 2


@pytest.mark.parametrize("dim", [6, 80])
def test_a_moment_about_another_mean(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, mean, other = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((9, dim), (1, dim), (2, dim))
    )
    about = second_moment(x, mean[0])[None]
    dense = _Centred(x.mean(0)[None], DenseMoment(second_moment(x, x.mean(0))[None]))
    factor = data_factor(x, x.mean(0))[None]
    factored = _Centred(x.mean(0)[None], of_factor(factor))
    assert torch.allclose(_matrix(dense.about(mean)), about)
    assert torch.allclose(_matrix(factored.about(mean)), about)
    both = torch.stack([second_moment(x, one) for one in other])
    for centred in (dense, factored):
        assert torch.allclose(_matrix(centred.about(other)), both)
        assert torch.allclose(centred.about(other).diagonal, both.diagonal(dim1=-2, dim2=-1))
        assert centred.about(centred.mean) is centred.moment
        assert centred.about(centred.mean.clone()) is centred.moment


def _matrix(moment: DenseMoment | FactoredMoment) -> torch.Tensor:
    if isinstance(moment, DenseMoment):
        return moment.matrix
    return moment.factor @ moment.factor.mT


def test_heldout_observations_are_scored_separately() -> None:
    spec = spec_of(data={**BASE["data"], "heldout": 0.25}, train={"epochs": 2, "batch_size": 7})
    records = list(run(spec))
    assert len(series(records, "lml_heldout")[4]) == 3
    held = [r for r in records if getattr(r, "name", "") == "lml_heldout"]
    assert len(held) == 2


def test_a_non_finite_loss_stops_training_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records: list[Record] = []
    descent = LinearGaussianTrainer._descent

    def overflowing(self: LinearGaussianTrainer, *args: Any) -> torch.Tensor:
        loss = descent(self, *args)
        return loss * torch.tensor([1.0, math.inf]) if self.epoch == 7 else loss

    monkeypatch.setattr(LinearGaussianTrainer, "_descent", overflowing)
    monkeypatch.setattr(short_steps, "MAX_EPOCHS", 0)
    with pytest.raises(RunError, match=r"seed 44 is not finite at epoch 7: lower"):
        _collect(spec_of(train={"epochs": 100}), records)
    points = series(records, "lml")[4]
    assert [point.x for point in points] == list(range(8))
    assert points[0].value is not None


def _collect(spec: LinearGaussianExperiment, into: list[Record]) -> None:
    """Collect the records of a run until it ends or fails."""
    for record in run(spec):
        into.append(record)


def test_weights_are_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "artifacts" / "first-1"
    spec = spec_of(train={"epochs": 30})
    records = [r for r in resumable(spec, RunState(work_dir=folder)) if r is not None]
    assert [r.file for r in records if isinstance(r, Artifact)] == ["weights.safetensors"]
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    model = {"family": "ppca", "latent_dim": 2, "init": "experiment", "experiment": "first-1"}
    taken = {**BASE, "model": model}
    del taken["train"]
    again = list(run(parse_spec(json.dumps(taken).encode())))
    lml = [r.value for r in records if isinstance(r, Metric) and r.name == "lml"]
    assert lml == pytest.approx(
        [r.value for r in again if isinstance(r, Metric) and r.name == "lml"]
    )
    taken["model"] = {**model, "latent_dim": 3}
    with pytest.raises(RunError, match="has weights for D = 6, K = 2"):
        list(run(parse_spec(json.dumps(taken).encode())))
    taken["model"] = {**model, "experiment": "gone"}
    with pytest.raises(RunError, match="has no weights"):
        list(run(parse_spec(json.dumps(taken).encode())))


@pytest.mark.parametrize(
    ("data", "kept"), [({}, ["5"]), ({"seed": "run"}, ["5", "6"])], ids=["shared", "run"]
)
def test_a_fitted_density_is_saved_once_for_each_data_set(
    data: dict[str, Any], kept: list[str], tmp_path: Path
) -> None:
    value = {**BASE, "data": {**BASE["data"], **data}, "seeds": [5, 6]}
    del value["train"]
    drawn = parse_spec(json.dumps(value).encode())
    value["model"] = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
    spec = parse_spec(json.dumps(value).encode())
    (artifact,) = (
        one for one in resumable(spec, RunState(work_dir=tmp_path)) if isinstance(one, Artifact)
    )
    tensors = load_file(tmp_path / artifact.file)
    parts = ("loadings", "mean", "noise_variance")
    assert sorted(tensors) == sorted(f"{seed}/{part}" for seed in kept for part in parts)
    others = [*resumable(drawn, RunState(work_dir=tmp_path)), *run(spec)]
    assert not [one for one in others if isinstance(one, Artifact)]


def test_per_dimension_noise_is_learned() -> None:
    train = {"objective": "lml", "epochs": 60, "learn_noise_precision": True}
    trainer = trainer_of(spec_of(model={**BASE["model"], "family": "factor_analysis"}, train=train))
    for _ in range(60):
        trainer.advance()
        trainer.epoch += 1
    noise = trainer.densities()[0].noise_variance
    assert math.isfinite(noise.sum().item())
    assert noise.max() > 1.02 * noise.min()

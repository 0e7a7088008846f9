"""What a GPU is asked for: kernels, synchronisations and copies. Counted on a pretended one, so
that a number that is brought back inside a loop, or a mask that is copied by itself, is seen."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.estimation.masks import SizedMasks
from mptcore.estimation.model import Evidence, VectorModel
from mptcore.estimation.scores import score_masks
from mptcore.families.linear_gaussian.densities import scorable
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.starts import random_start
from mptcore.families.linear_gaussian.trainer import LinearGaussianTrainer
from mptcore.families.masked_lm import evaluation
from mptcore.families.masked_lm.masked_batch import MaskedBatch, Masker
from mptcore.families.masked_lm.model import MaskedLm, score_sequences
from mptcore.families.masked_lm.packing import Row
from mptcore.families.masked_lm.trainer import MaskedLmTrainer
from mptcore.families.vae.grid_vae import GridVae
from mptcore.families.vae.likelihoods import BernoulliLikelihood
from mptcore.families.vae.networks import linear_decoder
from mptcore.runtime.session import ScoreCache
from mptcore.specs import PpcaModel, RateMasks, TextEvaluate, TextTrain, Train, UniformGrid
from mptcore.training.step_masks import StepMasks
from tests.support import tiny_lm
from tests.support.pretended_gpu import DEVICE, PretendedGpu, pretended_gpu
from tests.support.runs import records, result_of, spec_of
from tests.support.texts import corpus_of

CPU = torch.device("cpu")
DIM = 12
WITHOUT_DROPOUT: dict[str, Any] = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def gaussian(observations: int) -> VectorModel:
    draws = torch.Generator().manual_seed(1)
    loadings = torch.randn(DIM, 2, generator=draws, dtype=torch.float64)
    noise = torch.full((DIM,), 0.2, dtype=torch.float64)
    x = torch.randn(observations, DIM, generator=draws, dtype=torch.float64)
    return scorable(LowRankGaussian(loadings, x.mean(0), noise), x, DEVICE)


def grid_vae() -> VectorModel:
    grid = UniformGrid(method="uniform_grid", nodes=5)
    vae = GridVae(None, linear_decoder(DIM, 2), BernoulliLikelihood(), 2, grid)
    x = (torch.arange(9 * DIM).view(9, DIM) % 3 == 0).float().to(DEVICE)
    return vae.to(x).scored_on(x, 4, Evidence(0.0))


def masks(count: int) -> Tensor:
    return torch.rand(count, DIM, generator=torch.Generator().manual_seed(2)) < 0.5


def language_model() -> MaskedLm:
    return MaskedLm(tiny_lm.network(), DEVICE, torch.float32)


def sequences(count: int) -> MaskedBatch:
    """Masked sequences of one length."""
    masker = Masker(corpus_of(["the cat sat on a red mat"] * count), 4, 15)
    rates = torch.full((count,), 0.4, dtype=torch.float64)
    return masker.at_rates(torch.arange(count), rates, torch.Generator().manual_seed(1))[0]


def asked(gpu: PretendedGpu) -> dict[str, int]:
    names = ("launches", "synchronisations", "to_device", "to_host", "waited")
    return {name: value for name, value in asdict(gpu).items() if name in names}


def asked_for_masks(make: Callable[[], VectorModel], count: int) -> dict[str, int]:
    """By one batch, when the model has scored another before."""
    batch = SizedMasks([(3, count)], masks(count))
    with pretended_gpu() as gpu:
        model = make()
        for _ in range(2):
            gpu.reset()
            result_of(score_masks([model], [batch], ScoreCache()))
        return asked(gpu)


@pytest.mark.parametrize(("observations", "launches"), [(60, 37), (5, 29)])
def test_a_batch_of_masks_for_a_gaussian(observations: int, launches: int) -> None:
    """Whatever its size. One synchronisation is that of the scores' copy, one Cholesky's."""
    found = asked_for_masks(lambda: gaussian(observations), 64)
    assert found["launches"] <= launches
    assert found["synchronisations"] <= 2
    assert (found["to_device"], found["waited"], found["to_host"]) == (1, 0, 1)
    assert asked_for_masks(lambda: gaussian(observations), 4) == found


def test_the_next_masks_of_vectors_are_drawn_while_the_device_has_work() -> None:
    """Of two models, whose scores are fetched together; joint scores wait for nothing else."""
    fetched: list[int] = []

    def drawn() -> Iterator[SizedMasks]:
        for _ in range(3):
            fetched.append(gpu.to_host)
            yield SizedMasks([(3, 16)], masks(16))

    with pretended_gpu() as gpu:
        models = [gaussian(60), gaussian(5)]
        gpu.reset()
        result_of(score_masks(models, drawn(), ScoreCache(), joint=True))
    assert fetched == [0, 0, 1]
    assert (gpu.to_host, gpu.to_device, gpu.waited) == (3, 3, 0)


def test_a_gpu_scores_four_times_as_many_masks_by_the_same_launches(tmp_path: Path) -> None:
    """A batch as large as a processor's caches is no work for it: here 160 masks, of 768."""
    found = []
    for per_size in (4, 16):
        spec = {
            "model": {"family": "ppca", "latent_dim": 12, "noise_precision": 5.0, "init": "random"},
            "data": {
                "source": "ppca",
                "n": 100,
                "dim": 48,
                "latent_dim": 4,
                "noise_precision": 5.0,
            },
            "evaluate": {"masks": {"schedule": "all", "per_size": per_size}},
            "compute": {"device": "cuda", "threads": 1},
        }
        with pretended_gpu() as gpu:
            records(spec_of(spec), tmp_path / str(per_size))
        found.append(asked(gpu))
    assert found[0] == found[1]


def test_a_batch_of_masks_for_a_grid() -> None:
    """Whatever its size. One synchronisation is for what is lost to rounding."""
    found = asked_for_masks(grid_vae, 16)
    assert found["launches"] <= 33
    assert found["synchronisations"] == 2
    assert (found["to_device"], found["to_host"]) == (1, 1)
    assert asked_for_masks(grid_vae, 4) == found


def test_a_batch_of_sequences() -> None:
    """Of a network of two layers: the sequences go to the device in one copy, their order in
    another, and nothing is waited for but the scores."""
    with pretended_gpu() as gpu:
        model = language_model()
        found = []
        for count in (4, 32):
            gpu.reset()
            result_of(score_sequences({"model": model}, sequences(count), ScoreCache()))
            found.append(asked(gpu))
    assert found[0] == found[1]
    assert found[0]["launches"] <= 76
    assert found[0]["synchronisations"] == found[0]["to_host"] == 1
    assert found[0]["to_device"] == 2
    assert found[0]["waited"] == 0


@pytest.mark.parametrize("models", [1, 2])
def test_the_scores_of_many_parts_are_fetched_once(models: int) -> None:
    """And what is to be done meanwhile, the next masks, is done while the device has work."""
    masker = Masker(corpus_of(tiny_lm.lines(40)), 4, 15)
    rates = torch.full((40,), 0.4, dtype=torch.float64)
    batch, _ = masker.at_rates(torch.arange(40), rates, torch.Generator().manual_seed(1))
    with pretended_gpu() as gpu:
        made = [MaskedLm(tiny_lm.network(), DEVICE, torch.float32, 40_000) for _ in range(models)]
        parts = len(list(made[0].parts(batch)))
        gpu.reset()
        begun: list[int] = []

        def meanwhile() -> None:
            assert gpu.synchronisations == 0
            begun.append(gpu.launches)

        steps = score_sequences(dict(zip("ab", made, strict=False)), batch, ScoreCache(), meanwhile)
        found = result_of(steps)
    assert parts > 4
    assert begun[0] > 40 * parts * models
    assert gpu.synchronisations == gpu.to_host == 1
    assert gpu.to_device == models * (parts + 1)
    assert gpu.waited == 0
    assert found.shape == (models, 2, 40)


@pytest.mark.parametrize("target", [None, 20.0])
def test_the_next_masks_are_drawn_while_the_device_has_work(
    target: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a curve, and of a round of masks towards a target."""
    monkeypatch.setattr(evaluation, "CHUNK_TOKENS", 200)
    spec = TextEvaluate(
        masks=RateMasks(rates=(0.2, 0.5)), target_std_err=target, dimensions=10, max_masks=100
    )
    masker = Masker(corpus_of(tiny_lm.lines(60)), 4, 15)
    fetched: list[int] = []
    draw = Masker.at_rates

    def noted(masker: Masker, *given: Any) -> tuple[MaskedBatch, Tensor]:
        fetched.append(gpu.to_host)
        return draw(masker, *given)

    monkeypatch.setattr(Masker, "at_rates", noted)
    with pretended_gpu() as gpu:
        models = {"model": language_model()}
        text = evaluation.TextEvaluation(spec, models, masker, {"seed": 1}, ScoreCache())
        gpu.reset()
        for _ in text.records(torch.Generator().manual_seed(1)):
            pass
    assert fetched[:3] == [0, 0, 1]
    assert gpu.to_host == len(fetched)


def computed_in(found: Tensor) -> torch.dtype:
    """Autocasts are asked for; they pass by the tensors of a pretended GPU."""
    autocast = torch.is_autocast_enabled("cuda")
    return torch.get_autocast_dtype("cuda") if autocast else found.dtype


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_a_language_model_on_a_gpu_is_in_bfloat16_unless_told(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and products; weights that are trained stay in float32."""
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))
    made: list[tuple[torch.dtype, torch.dtype]] = []
    own = MaskedLm._log_probs

    def noted(model: MaskedLm, row: Row) -> Tensor:
        seen: list[torch.dtype] = []
        first = next(m for m in model.network.modules() if isinstance(m, torch.nn.Linear))
        hook = first.register_forward_hook(lambda *given: seen.append(computed_in(given[-1])))
        found = own(model, row)
        hook.remove()
        made.append((first.weight.dtype, seen[0]))
        assert found.dtype == torch.float32
        return found

    monkeypatch.setattr(MaskedLm, "_log_probs", noted)
    spec: dict[str, Any] = {
        "model": {"family": "masked_lm", "checkpoint": "tiny"},
        "data": {"source": "text", "lines": tiny_lm.lines(6)},
        "evaluate": {"masks": {"schedule": "rates", "rates": [0.5]}, "dimensions": 10},
        "compute": {"device": "cuda", "threads": 1, "precision": precision},
    }
    with pretended_gpu():
        (log, *_) = records(spec_of(spec), tmp_path / "evaluated")
        evaluated = set(made)
        made.clear()
        records(spec_of({**spec, "train": {"steps": 1, "batch_size": 4}}), tmp_path / "trained")
    computed = torch.bfloat16 if precision == "auto" else torch.float32
    assert f"{computed}".removeprefix("torch.") in log
    assert evaluated == {(computed, computed)}
    assert set(made) == {(torch.float32, computed)}


def trainer_of(count: int, device: torch.device = DEVICE, **sizes: Any) -> MaskedLmTrainer:
    spec = TextTrain(steps=4, batch_size=count, warmup_steps=1)
    model = MaskedLm(tiny_lm.network(**sizes), device, torch.float32)
    return MaskedLmTrainer(spec, model, Masker(corpus_of(tiny_lm.lines(40)), 4, 15), None, 1)


def test_a_training_step_of_a_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 sentences of 5 to 11 tokens are one part, and the device is waited for once."""
    with pretended_gpu() as gpu:
        trainer = trainer_of(32)
        parts: list[Tensor] = []
        cut = trainer.model.parts

        def cut_and_kept(masks: MaskedBatch) -> list[Tensor]:
            parts[:] = cut(masks)
            return parts

        monkeypatch.setattr(trainer.model, "parts", cut_and_kept)
        gpu.reset()
        trainer.advance()
        assert len(parts) == 1
        assert gpu.synchronisations == 1
        assert gpu.to_device == 2
        assert gpu.waited == 0
        assert gpu.launches <= 460  # 240 of the network, the rest of the gradient's norm
        assert gpu.forks == [DEVICE]  # and no other GPU's generator was looked at
        gpu.reset()
        trainer.adam.step()
        assert gpu.launches <= 4  # for the weights that decay, and for the others


def test_a_language_model_is_trained_on_by_another_device() -> None:
    """Whose optimizer is another one: from a CPU to a GPU, and back."""
    moves = ((DEVICE, DEVICE, DEVICE), (CPU, DEVICE, CPU))
    found = []
    with pretended_gpu():
        for devices in moves:
            kept = None
            for step, device in enumerate(devices):
                trainer = trainer_of(8, device, **WITHOUT_DROPOUT)
                if kept is not None:
                    trainer.restore(kept)
                trainer.epoch = step
                loss = trainer.step()
                kept = {name: value.cpu() for name, value in trainer.tensors().items()}
            found.append(loss)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def gradients(trainer: MaskedLmTrainer) -> list[Tensor]:
    found = [p.grad for p in trainer.network.parameters()]
    return [one.cpu() for one in found if one is not None]


def test_a_step_that_is_short_of_memory_has_the_same_gradient() -> None:
    with pretended_gpu() as gpu:
        trainer = trainer_of(16, **WITHOUT_DROPOUT)
        expected = trainer.step()
        whole = gradients(trainer)
        gpu.most_numbers = 700  # all weights, and the layers of two or three sentences
        trainer = trainer_of(16, **WITHOUT_DROPOUT)
        assert trainer.step() == pytest.approx(expected, rel=1e-6)
        for found, other in zip(gradients(trainer), whole, strict=True):
            torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-6)
        assert gpu.refused > 0
        gpu.refused = 0
        trainer.step()
        assert gpu.refused == 0  # cut before, from now on
        gpu.most_numbers = 100
        with pytest.raises(torch.OutOfMemoryError):
            trainer.step()


def test_scores_that_are_short_of_memory_are_the_same() -> None:
    batch = SizedMasks([(3, 32)], masks(32))
    with pretended_gpu() as gpu:
        model, language = gaussian(60), {"model": language_model()}
        found = []
        for most in (None, 700):
            gpu.most_numbers = most
            ((scores,),) = result_of(score_masks([model], [batch], ScoreCache()))
            found.append(scores.values)
            found.append(result_of(score_sequences(language, sequences(8), ScoreCache())))
    torch.testing.assert_close(found[2], found[0])
    torch.testing.assert_close(found[3], found[1])


def test_what_did_not_fit_is_not_tried_again() -> None:
    """By the model that met it: not in the batch of then, and not in those that follow."""
    batches = [SizedMasks([(3, 32)], masks(32)) for _ in range(4)]
    with pretended_gpu() as gpu:
        model, language = gaussian(60), {"model": language_model()}
        gpu.most_numbers = 700
        result_of(score_masks([model], batches, ScoreCache()))
        assert gpu.refused == 1
        gpu.refused = 0
        for _ in range(2):
            result_of(score_sequences(language, sequences(32), ScoreCache()))
            assert gpu.refused == 4  # of 32, 16, 8 and 4 sequences


def gaussian_trainer(
    dim: int = DIM, device: torch.device = DEVICE, **changes: Any
) -> LinearGaussianTrainer:
    """Of two starts on data of their own."""
    spec = Train.model_validate({"epochs": 4, "batch_size": 5, **changes})
    draws = torch.Generator().manual_seed(1)
    data = [Dataset(torch.randn(20, dim, generator=draws)) for _ in range(2)]
    model = PpcaModel(family="ppca", latent_dim=4, noise_precision=5.0, init="random")
    starts = [random_start(model, one, draws) for one in data]
    return LinearGaussianTrainer(model, spec, (1, 2), starts, data, device)


@pytest.mark.parametrize(
    ("launches", "changes"),
    [
        (107, {}),
        (114, {"batch_size": 15}),  # more observations than dimensions
        (108, {"dim": 80}),
        (144, {"learn_mean": True, "learn_noise_precision": True}),
        (70, {"objective": "lml"}),
    ],
)
def test_a_training_step_of_a_gaussian(launches: int, changes: dict[str, Any]) -> None:
    """The numbers of its observations and its masks go to the device; what comes back is whether
    sums of moments keep their digits, and the loss. Cholesky's check is waited for too."""
    with pretended_gpu() as gpu:
        trainer = gaussian_trainer(**{"evaluate_every": 4, **changes})
        trainer.advance()
        trainer.epoch = 1
        gpu.reset()
        trainer.advance()
    steps = trainer.spec.steps_per_epoch(20)
    assert gpu.launches <= launches * steps
    assert gpu.synchronisations == 3 * steps + 1  # and once of all data
    assert gpu.to_host == 2 * steps + 1
    assert gpu.to_device == (1 if "objective" in changes else 2) * steps
    assert gpu.waited == 0


def test_the_masks_of_the_next_step_are_drawn_before_the_loss_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step looks at its digits, then at its loss."""
    fetched: list[int] = []
    draw = StepMasks.draw_each

    def noted(masks: StepMasks, *given: Any) -> Tensor:
        fetched.append(gpu.to_host)
        return draw(masks, *given)

    monkeypatch.setattr(StepMasks, "draw_each", noted)
    with pretended_gpu() as gpu:
        trainer = gaussian_trainer(evaluate_every=4)
        trainer.epoch = 1
        gpu.reset()
        trainer.advance()
        assert fetched == [2, 2, 4, 6, 8]  # 1 for the digits of all data
        trainer.epoch = 4
        trainer.advance()
    assert len(fetched) == 6  # after the last step there is none


@pytest.mark.parametrize(("dim", "batch_size"), [(DIM, 5), (DIM, 15), (80, 5), (150, None)])
def test_whatever_the_form_of_its_moment_a_step_is_that_of_a_cpu(
    dim: int, batch_size: int | None
) -> None:
    """Which looks for a low rank, where a GPU takes the observations themselves."""

    def trained(device: torch.device) -> list[float | None]:
        trainer = gaussian_trainer(dim, device, batch_size=batch_size, learn_noise_precision=True)
        return [point.value for _ in range(2) for point in trainer.advance()[0]]

    expected = trained(CPU)
    with pretended_gpu():
        assert trained(DEVICE) == pytest.approx(expected, rel=1e-9)


def test_data_that_leave_a_gpu_no_room_are_sent_step_by_step() -> None:
    """The same numbers, of data of which the device holds a quarter."""
    found = []
    for memory_bytes in (2**20, 3 * 20 * DIM * 4):
        with pretended_gpu(memory_bytes) as gpu:
            trainer = gaussian_trainer()
            held = {x.device for x in trainer._x}
            gpu.reset()
            points, _ = trainer.advance()
            found.append([point.value for point in points])
        assert (held == {DEVICE}) == (memory_bytes == 2**20)
        assert gpu.waited == 0
        assert gpu.to_device == 2 * 4
    assert found[0] == found[1]


@pytest.mark.parametrize("learn_mean", [False, True])
def test_a_step_of_a_gaussian_that_is_short_of_memory_has_the_same_gradient(
    learn_mean: bool,
) -> None:
    """By hand, and by autograd."""
    with pretended_gpu() as gpu:
        found = []
        for most in (None, 1000):  # all masks, and what is computed of a part
            trainer = gaussian_trainer(
                learn_mean=learn_mean,
                learn_noise_precision=True,
                masks={"schedule": "all", "per_size": 3},
            )
            gpu.most_numbers = most
            loss = trainer._descent(next(trainer._batches()), 0).cpu()
            assert (gpu.refused > 0) == (most == 1000)
            gpu.most_numbers = None
            found.append([loss, *(one.grad.cpu() for one in trainer.parameters.values())])
        torch.testing.assert_close(found[0], found[1])
        gpu.most_numbers, gpu.refused = 1000, 0
        trainer.advance()
        assert gpu.refused == 0
        gpu.most_numbers = 20
        with pytest.raises(torch.OutOfMemoryError):
            trainer.advance()


def test_a_network_that_is_made_anew_touches_no_generator_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))
    spec = {
        "model": {"family": "masked_lm", "checkpoint": "tiny", "init": "random"},
        "data": {"source": "text", "lines": tiny_lm.lines(6)},
        "evaluate": {"masks": {"schedule": "rates", "rates": [0.5]}, "dimensions": 10},
        "compute": {"device": "cuda", "threads": 1},
    }
    with pretended_gpu() as gpu:
        records(spec_of(spec), tmp_path)
    assert gpu.forks == []

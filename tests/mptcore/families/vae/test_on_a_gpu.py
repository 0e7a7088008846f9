"""VAEs on a pretended GPU: where they draw, and how many kernels and copies they ask for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.estimation.masks import MaskBatch
from mptcore.estimation.model import Evidence, Model
from mptcore.estimation.scores import score_sizes
from mptcore.families.vae import importance
from mptcore.families.vae.grid import GridVae
from mptcore.families.vae.importance import khats
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from mptcore.families.vae.networks import linear_decoder
from mptcore.families.vae.run import VaeRun
from mptcore.families.vae.trainer import TrainingStart, VaeTrainer
from mptcore.runtime.rng import generator_for, restore_generator
from mptcore.runtime.state import RunState
from mptcore.specs import UniformGrid, VaeExperiment
from mptlab_contract import assert_alike, records
from mptlab_contract.pretended_gpu import DEVICE, PretendedGpu, pretended_gpu
from tests.support.runs import result_of, spec_of

DIM = 12
IMPORTANCE = {"method": "importance", "draws": 20, "steps": 5}
RECURSIVE = {"method": "recursive", "draws": 3, "rounds": 2}
GRID = {"method": "uniform_grid", "nodes": 5}


def spec(conditionals: dict[str, Any], **changes: Any) -> VaeExperiment:
    model = {"latent_dim": 2, "conditionals": conditionals}
    likelihood = {"distribution": "gaussian", "noise_precision": 3.0}
    if conditionals is GRID:
        model |= {"family": "linear_vae", "likelihood": likelihood}
    else:
        network = {"layers": "dense", "widths": [5]}
        model |= {"family": "vae", "likelihood": likelihood, "network": network}
    data = {"source": "ppca", "n": 40, "dim": DIM, "latent_dim": 2, "noise_precision": 2.0}
    found = spec_of(
        {
            "model": model,
            "data": data,
            "evaluate": {"masks": {"schedule": "sizes", "sizes": [3], "per_size": 2}},
            "compute": {"device": "auto", "threads": 1, "precision": "float32"},
            **changes,
        }
    )
    assert isinstance(found, VaeExperiment)
    return found


def starts(of: VaeExperiment) -> list[TrainingStart]:
    run = VaeRun(of, RunState(), DEVICE, torch.float32)
    return [start for seed in of.seeds for start in run._starts(seed)]


def masks(count: int) -> Tensor:
    return torch.rand(count, DIM, generator=torch.Generator().manual_seed(2)) < 0.5


def scored(gpu: PretendedGpu, model: Model, masked: Tensor) -> Tensor:
    gpu.reset()
    batch = MaskBatch([(3, len(masked))], masked)
    _, scores = score_sizes([model], [batch], RunState())
    assert scores is not None
    return scores.values


@pytest.mark.parametrize("conditionals", [IMPORTANCE, RECURSIVE])
def test_the_noise_of_scores_is_drawn_where_they_are_computed(
    conditionals: dict[str, Any],
) -> None:
    """The masks are copied there, and the scores back."""
    with pretended_gpu() as gpu:
        (start,) = starts(spec(conditionals))
        scored(gpu, start.vae.scored_on(start.x, 4, Evidence(0.0)), masks(2))
        assert (gpu.to_device, gpu.to_host) == (1, 1)


def test_a_gpu_decodes_four_times_as_many_draws_at_once() -> None:
    """512 MiB of temporaries, which a run on a GPU plans for."""
    of = spec(IMPORTANCE)
    with pretended_gpu():
        (start,) = starts(of)
        assert start.vae.rows(1000) == pytest.approx(4 * start.vae.cpu().rows(1000), rel=0.01)
    on_gpu, on_either, on_cpu = (
        spec(IMPORTANCE, compute={"device": device}).memory_estimate()
        for device in ("cuda", "auto", "cpu")
    )
    assert on_gpu - on_cpu == on_either - on_cpu == 2**29


def test_a_fit_of_tails_is_the_same_in_few_launches() -> None:
    """Their number does not depend on the number of points of the integral."""
    weights = torch.randn(300, 5, generator=torch.Generator().manual_seed(1)).double()
    expected = khats(weights)
    with pretended_gpu() as gpu:
        there = weights.to(DEVICE)
        gpu.reset()
        found = khats(there).cpu()
    assert gpu.launches <= 60
    with pretended_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(importance, "GPU_BATCH_BYTES", 1)
        torch.testing.assert_close(khats(weights.to(DEVICE)).cpu(), expected)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("conditionals", "objective", "launches"),
    [
        (IMPORTANCE, ["mpt"], 3276),
        (RECURSIVE, ["mpt"], 728),
        (GRID, ["mpt"], 408),
        (RECURSIVE, ["elbo"], 363),
        (RECURSIVE, ["mpt", "elbo"], 1088),
    ],
)
def test_a_training_step_of_five_seeds(
    conditionals: dict[str, Any], objective: list[str], launches: int
) -> None:
    """Its masks and the numbers of its observations are copied there, and are not waited for; the
    losses are copied back."""
    train = {"objective": objective, "epochs": 4, "evaluate_every": 4, "batch_size": 20}
    with pretended_gpu() as gpu:
        of = spec(conditionals, train=train, seeds=[1, 2, 3, 4, 5])
        assert of.train is not None
        trainer = VaeTrainer(of.train, starts(of), of.seeds)
        trainer.epoch = 1
        trainer.advance()  # which makes the moments too
        gpu.reset()
        trainer.advance()
        assert (gpu.to_device, gpu.waited, gpu.to_host) == (2 * 2, 0, 2)
        assert gpu.launches <= 2 * launches
        gpu.reset()
        trainer.adam.step()
        assert gpu.launches <= 2


def test_annealing_and_pictures_on_a_gpu(tmp_path: Path) -> None:
    """All draws on the device use a generator of the device."""
    value: dict[str, Any] = {
        "model": {
            "family": "linear_vae",
            "latent_dim": 2,
            "likelihood": {"distribution": "bernoulli"},
            "conditionals": {**RECURSIVE, "rounds": 1},
        },
        "data": {"source": "digits", "binarize": "threshold"},
        "evaluate": {
            "masks": {"schedule": "sizes", "sizes": [3], "per_size": 1},
            "lml": {"method": "iwae", "samples": 4, "steps": 2},
            "ais": {"temperatures": 3, "chains": 2, "observations": 5, "simulated": 2},
        },
        "compute": {"device": "auto", "threads": 1, "precision": "float32"},
    }
    with pretended_gpu():
        found = records(spec_of(value), tmp_path / "gpu")
    on_cpu = {**value, "compute": {**value["compute"], "device": "cpu"}}
    assert_alike(found, records(spec_of(on_cpu), tmp_path / "cpu"))


def test_a_generator_is_restored_only_from_the_same_device() -> None:
    """The state of another kind of generator gives a fixed seed that no generator began with."""
    with pretended_gpu():
        on_cpu, on_gpu = (generator_for(1, "draws", torch.device(kind)) for kind in ("cpu", "cuda"))
        state = on_cpu.get_state()
        expected = torch.rand(3, generator=on_cpu)
        restore_generator(on_cpu, state)
        assert torch.equal(torch.rand(3, generator=on_cpu), expected)
        seeds = []
        for _ in range(2):
            restore_generator(on_gpu, state)
            seeds.append(on_gpu.initial_seed())
        assert seeds[0] == seeds[1] != on_cpu.initial_seed()
        torch.rand(1, generator=on_cpu)
        restore_generator(on_gpu, on_cpu.get_state())
        assert on_gpu.initial_seed() != seeds[0]


def test_training_resumes_on_another_device(tmp_path: Path) -> None:
    """Training moves from a CPU to a GPU and back, and ends with other draws."""
    train = {"objective": ["elbo"], "epochs": 6, "lml_samples": 2}
    of = spec(RECURSIVE, train=train)
    found = records(of, tmp_path, stop_after=5)
    with pretended_gpu() as gpu:
        found += records(of, tmp_path, stop_after=9)
        assert gpu.launches > 0
    found += records(of, tmp_path)
    undisturbed = records(of, tmp_path / "undisturbed")
    assert len(found) == len(undisturbed)
    values = [[json.loads(line).get("value") for line in lines] for lines in (found, undisturbed)]
    assert values[0][:5] == values[1][:5]
    assert values[0][9:] != values[1][9:]


def gradients(start: TrainingStart) -> list[Tensor]:
    return [one.grad.cpu() for one in start.vae.parameters() if one.grad is not None]


@pytest.mark.parametrize(
    ("conditionals", "objective"),
    [(RECURSIVE, "mpt"), (RECURSIVE, "elbo"), (GRID, "lml")],
)
def test_a_step_with_too_little_memory_has_the_same_gradient(
    conditionals: dict[str, Any], objective: str
) -> None:
    """Check the gradients of the ELBO, of the LML, and of the encoder trained next to scored
    masks."""
    of = spec(conditionals, train={"epochs": 1, "objective": [objective]})
    assert of.train is not None
    found = []
    with pretended_gpu() as gpu:
        for most in (None, 300):  # a quarter or half of the observations
            (start,) = starts(of)
            gpu.most_numbers = most
            trainer = VaeTrainer(of.train, [start], of.seeds)
            if objective == "mpt":
                start.vae.fit_encoder(start.x, trainer.draws[0])
            else:
                trainer._step({0: slice(None)}, None)
            found.append(gradients(start))
            assert (gpu.refused > 0) == (most is not None)
            gpu.most_numbers = None
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    ("conditionals", "dim", "most", "most_of_elbo"),
    [(GRID, 100, 20_000, 2500), (IMPORTANCE, 100, 90_000, 2500)],
)
def test_measurements_with_too_little_memory_are_the_same(
    conditionals: dict[str, Any], dim: int, most: int, most_of_elbo: int
) -> None:
    """The LML of the end and of a curve, and the ELBO: from the same draws."""
    of = spec(
        conditionals,
        data={"source": "ppca", "n": 40, "dim": dim, "latent_dim": 2, "noise_precision": 2.0},
        train={"epochs": 1, "objective": ["elbo"], "lml_samples": 16},
        evaluate={"lml": GRID if conditionals is GRID else {"method": "iwae", "samples": 16}},
    )
    assert of.train is not None
    found = []
    with pretended_gpu() as gpu:
        for short in (False, True):
            (start,) = starts(of)
            trainer = VaeTrainer(of.train, [start], of.seeds)
            draws = generator_for(1, "draws", DEVICE)
            gpu.refused, gpu.most_numbers = 0, most if short else None
            evidence = result_of(start.vae.evidence(start.x, draws))
            curve = trainer._lml_point("lml", start, start.x)
            assert (gpu.refused > 0) == short
            gpu.refused, gpu.most_numbers = 0, most_of_elbo if short else None
            with torch.no_grad():
                elbo = trainer._elbo_point(start, draws)
            assert (gpu.refused > 0) == short
            gpu.most_numbers = None
            found.append([evidence.value, evidence.std_err, curve.value, elbo.value, elbo.std_err])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize("likelihood", [BernoulliLikelihood(), GaussianLikelihood(3.0)])
def test_masks_scored_together_have_the_same_scores_as_on_a_cpu(
    likelihood: Likelihood, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a grid: a few at a time, and with values that are nearly impossible."""
    of_three_masks = 8 * 8 * 9 * 25 * 3
    monkeypatch.setattr("mptcore.families.vae.grid.CHUNK_BYTES", of_three_masks)
    x = (torch.arange(9 * DIM).view(9, DIM) % 3 == 0).double()
    found = []
    with pretended_gpu() as gpu:
        for device in (torch.device("cpu"), DEVICE):
            torch.manual_seed(3)
            grid = UniformGrid.model_validate(GRID)
            vae = GridVae(None, linear_decoder(DIM, 2), likelihood, 2, grid).double()
            with torch.no_grad():
                vae.decoder.get_parameter("last.weight").mul_(400)
            model = vae.to(device).scored_on(x.to(device), 4, Evidence(0.0))
            assert model.efficient_batch == (1 if device.type == "cpu" else 3)
            gpu.reset()
            found.append(model.scores(masks(7).to(device)).cpu())
    torch.testing.assert_close(found[1], found[0])
    assert gpu.launches < 7 * 31


def test_the_baseline_stays_on_the_cpu(tmp_path: Path) -> None:
    """Its scores have the same bits on any device; those by torch on a GPU have other last bits."""
    baseline = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
    of = spec(GRID, baseline=baseline)
    on_cpu = of.model_copy(update={"compute": of.compute.model_copy(update={"device": "cpu"})})

    def of_baseline(lines: list[str]) -> list[str]:
        return [line for line in lines if '"model": "baseline"' in line]

    expected = of_baseline(records(on_cpu, tmp_path / "cpu"))
    with pretended_gpu() as gpu:
        found = of_baseline(records(of, tmp_path / "gpu"))
        assert gpu.launches > 0
    assert found == expected != []

"""Runs with a target: z = (estimate − truth) / its standard error, over seeds. Unbiased: a mean of
z of 0; calibrated: a standard deviation of 1. Seeds that report no error are counted separately;
enumerated sums are exact."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import Model
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.families.linear_gaussian.run import LinearGaussianRun
from mptcore.families.masked_lm.curve import CorpusEvaluation
from mptcore.families.masked_lm.masks import Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.presets import PRESETS
from mptcore.protocol.records import Metric, Record
from mptcore.runtime.state import Records, RunState
from mptcore.specs import LinearGaussianExperiment, MaskedLmEvaluate, MaskEvaluation
from tests.support import tiny_lm
from tests.support.runs import records_of, result_of
from tests.support.strata import sampled, spiked
from tests.support.texts import CPU, corpus_of

SEEDS = 1000
RATES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
SMALL: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
    "baseline": {"family": "ppca", "latent_dim": 1, "noise_precision": 4.0, "init": "random"},
    "data": {"source": "ppca", "n": 40, "dim": 10, "latent_dim": 2, "noise_precision": 5.0},
}
HEADER = (
    f"{'what':32} {'target':>7} {'mean z':>8} {'sd z':>6} {'max |z|':>8} {'within 2':>9} "
    f"{'masks':>8} {'missed':>7} {'no error':>9} {'exact':>6}"
)


@dataclass(frozen=True)
class Seed:
    """Result of one seed's run."""

    error: float
    """Error of the estimate."""
    std_err: float | None
    masks: float
    reached: float


def main() -> None:
    torch.set_num_threads(1)
    print(f"Targets, {SEEDS} seeds each (mean z within ± {2 / SEEDS**0.5:.2f} by chance)\n{HEADER}")
    table1 = _models(PRESETS["table1"].specs[0])
    for target in (0.05, 0.03):
        _show("PPCA, D = 200 (Table 1)", target, _vectors({"model": table1["model"]}, target))
    small = _models(LinearGaussianExperiment.model_validate(SMALL))
    alone = {"model": small["model"]}
    for target in (1.0, 0.3, 0.1):
        _show("PPCA, D = 10", target, _vectors(alone, target))
    wide = _models(
        LinearGaussianExperiment.model_validate({**SMALL, "data": {**SMALL["data"], "dim": 16}})
    )
    _show("PPCA, D = 16, size 8", 0.2, _one_size({"model": wide["model"]}, 0.2))
    _show("PPCA, D = 16, difference", 2.0, _vectors(wide, 2.0, target="difference"))
    for target in (5.0, 0.25):
        _show("language model, 9 rates", target, _text(target, "area"))
    _show("language model, cumulative", 0.5, _text(0.5, "cumulative"))
    for share in (0.1, 0.05, 0.02, 0.01):
        _show(f"10 sizes, spikes in {share:.0%}", 1.0, _spiked(10, share, 1.0))
    for share in (0.1, 0.05, 0.02, 0.01):
        _show(f"one size, spikes in {share:.0%}", 0.3, _spiked(1, share, 0.3))


def _show(what: str, target: float, seeds: Iterator[Seed]) -> None:
    found = list(seeds)
    z = torch.tensor([one.error / one.std_err for one in found if one.std_err] or [math.nan])
    assert all(abs(one.error) < 1e-9 for one in found if one.std_err == 0)
    masks = sum(one.masks for one in found) / len(found)
    missed = sum(1 - one.reached for one in found) / len(found)
    unknown = sum(one.std_err is None for one in found) / len(found)
    exact = sum(one.std_err == 0 for one in found) / len(found)
    print(
        f"{what:32} {target:7g} {z.mean():+8.3f} {z.std():6.3f} {z.abs().max():8.2f} "
        f"{(z.abs() < 2).float().mean():9.1%} {masks:8.0f} {missed:7.1%} {unknown:9.1%} "
        f"{exact:6.1%}",
        flush=True,
    )


def _models(spec: Any) -> dict[str, Model]:
    run = LinearGaussianRun(spec, RunState(), CPU, torch.float64)
    seed = result_of(run.models_of(spec.seeds[0]))
    return {
        name: solver_for(density, seed.dataset.x, CPU) for name, density in seed.densities.items()
    }


def _vectors(
    models: Mapping[str, Model], std_err: float, name: str = "difference", **spec: Any
) -> Iterator[Seed]:
    """Runs of vector models, by default with the metric `difference` to the exact LML, whose truth
    is 0."""
    lml = [model.evidence().value for model in models.values()]
    truth = 0.0
    if spec.get("target") == "difference":
        name, truth = "score_difference", lml[0] - lml[1]
    evaluate = MaskEvaluation.model_validate({"target_std_err": std_err, **spec})
    for seed in range(SEEDS):
        evaluation = Evaluation(evaluate, models, {}, RunState())
        yield _seed(evaluation.records(torch.Generator().manual_seed(seed)), name, truth)


def _one_size(models: Mapping[str, Model], target: float) -> Iterator[Seed]:
    """The truth is that of all masks of the size."""
    masks: dict[str, Any] = {"schedule": "fixed", "size": 8}
    whole = MaskEvaluation.model_validate({"masks": {**masks, "design": "exhaustive"}})
    records = records_of(Evaluation(whole, models, {}, RunState()).records(torch.Generator()))
    truth = _metric(records, "biased_score")[0]
    evaluate = MaskEvaluation.model_validate({"target_std_err": target, "masks": masks})
    for seed in range(SEEDS):
        evaluation = Evaluation(evaluate, models, {}, RunState())
        yield _seed(evaluation.records(torch.Generator().manual_seed(seed)), "biased_score", truth)


def _text(target: float, name: str) -> Iterator[Seed]:
    """The truth is that of very many masks: their error is below a tenth of the target's."""
    models = {"model": MaskedLm(tiny_lm.network(scale=8.0), CPU, torch.float32)}
    masker = Masker(corpus_of(tiny_lm.lines(12)), 4, 15)
    many = {"target_std_err": target / 40 if target < 1 else 0.02, "max_masks": 10_000_000}

    def records(seed: int, **spec: Any) -> Records[None]:
        evaluate = {"masks": {"rates": RATES}, "dimensions": 10, "target": name, **spec}
        asked = MaskedLmEvaluate.model_validate(evaluate)
        evaluation = CorpusEvaluation(asked, models, masker, {}, RunState())
        return evaluation.records(torch.Generator().manual_seed(seed))

    truth, _ = _metric(records_of(records(SEEDS, **many)), name)
    for seed in range(SEEDS):
        yield _seed(records(seed, target_std_err=target), name, truth)


def _seed(work: Records[None], name: str, truth: float) -> Seed:
    records = records_of(work)
    mean, std_err = _metric(records, name)
    masks, reached = _metric(records, "masks")[0], _metric(records, "target_reached")[0]
    return Seed(mean - truth, std_err, masks, reached)


def _spiked(strata: int, share: float, target: float) -> Iterator[Seed]:
    """Scores with a share that is lower by 200 times the spread of the others."""
    pools = spiked(strata, share, 20.0)
    truth = sum(pool.mean().item() for pool in pools)
    for seed in range(SEEDS):
        estimate, masks = sampled(pools, target, seed)
        std_err = estimate.known_std_err
        yield Seed(estimate.mean - truth, std_err, masks, (std_err or target + 1) <= target)


def _metric(records: list[Record], name: str) -> tuple[float, float | None]:
    """Return the value and standard error of a metric of the first model."""
    found = next(one for one in records if isinstance(one, Metric) and one.name == name)
    assert found.value is not None
    return found.value, found.std_err

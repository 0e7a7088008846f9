"""A preset on the choice of masks: errors of several designs with equally many masks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import stdev
from typing import Any

from mptcore.presets.judges import Published
from mptcore.presets.preset import Preset
from mptcore.presets.results import Comparison, Results, exceeds, no_more
from mptcore.specs import (
    ExperimentSpec,
    LinearGaussianExperiment,
    MaskedLmExperiment,
    VaeExperiment,
)

PER_SIZE = 16
SEEDS: Mapping[str, tuple[int, ...]] = {
    "D = 50": tuple(range(200)),
    "D = 200": tuple(range(200)),
    "D = 784": tuple(range(200)),
    "linear VAE": tuple(range(80)),
    "rxnfp-bert": tuple(range(80)),
}
"""Seeds of the masks of each model. The seeds of the VAE are also those of its training."""
DESIGNS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("D = 50", "D = 200", "D = 784"), ("balanced", "adaptive", "nested")),
    "linear VAE": ("balanced", "nested"),
    "rxnfp-bert": ("adaptive",),
}
"""Designs of each model that are compared with independent masks. Adaptive masks are independent
too, but more of them have the sizes whose scores vary more."""
SMALLER = "D = 200"
"""The model for which both other designs are claimed to have a smaller error."""
UNREACHED = 1e-6
"""Target standard error of the adaptive masks: too small to be reached, so that all are scored."""


def _scored(design: str, per_size: int, sizes: int) -> dict[str, Any]:
    """Return how many masks are scored, equally many in each design."""
    if design == "adaptive":
        return {"target_std_err": UNREACHED, "max_masks": per_size * sizes}
    return {"masks": {"schedule": "all", "per_size": per_size, "design": design}}


def _ppca(name: str, dim: int, n: int) -> Iterator[LinearGaussianExperiment]:
    common = {"latent_dim": 5, "noise_precision": 5.0}
    for design in ("independent", *DESIGNS[name]):
        yield LinearGaussianExperiment.model_validate(
            {
                "model": {"family": "ppca", "init": "generator", **common},
                "data": {"source": "ppca", "n": n, "dim": dim, "seed": 1991, **common},
                "evaluate": _scored(design, PER_SIZE, dim),
                "seeds": list(SEEDS[name]),
            }
        )


def _linear_vae(name: str) -> Iterator[VaeExperiment]:
    model = {
        "family": "linear_vae",
        "latent_dim": 2,
        "likelihood": {"distribution": "bernoulli"},
        "conditionals": {"method": "gauss_hermite", "nodes": 16},
    }
    for design in ("independent", *DESIGNS[name]):
        yield VaeExperiment.model_validate(
            {
                "model": model,
                "data": {"source": "digits", "binarize": "threshold"},
                "train": {
                    "objective": "elbo",
                    "epochs": 60,
                    "learning_rate": 0.03,
                    "evaluate_every": 60,
                },
                "evaluate": _scored(design, 4, 64),
                "seeds": list(SEEDS[name]),
                "compute": {"threads": 1},
            }
        )


def _language_model(name: str) -> Iterator[MaskedLmExperiment]:
    """Yield experiments with two masks of each of 25 rates for 20 molecules."""
    rates = [round(0.04 * i + 0.02, 2) for i in range(25)]
    for adaptive in ({}, {"target_std_err": UNREACHED, "max_masks": 40 * len(rates)}):
        yield MaskedLmExperiment.model_validate(
            {
                "model": {"family": "masked_lm", "checkpoint": name},
                "data": {"source": "text", "file": "nci_smiles.txt", "n": 20, "seed": 7},
                "evaluate": {
                    "masks": {"schedule": "rates", "rates": rates, "per_size": 2},
                    **adaptive,
                },
                "seeds": list(SEEDS[name]),
                "compute": {"threads": 1},
            }
        )


def _specs() -> Iterator[ExperimentSpec]:
    yield from _ppca("D = 50", 50, 200)
    yield from _ppca("D = 200", 200, 200)
    yield from _ppca("D = 784", 784, 20)
    yield from _linear_vae("linear VAE")
    yield from _language_model("rxnfp-bert")


def designs(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test the ratio of standard deviations over seeds on the log scale. The log of a standard
    deviation of n normal values has a standard error of 1 / √(2 (n − 1))."""
    rest = iter(results)
    for name, compared in DESIGNS.items():
        independent = _log_spread(next(rest), name)
        error = math.sqrt(2) / math.sqrt(2 * (len(SEEDS[name]) - 1))
        for design in compared:
            ratio = _log_spread(next(rest), name) - independent
            figure = f"log of the error of {design} masks / independent ones, {name}"
            if design == "nested":
                least, expected = (published[one][0] for one in ("worse", "expected_worse"))
                yield exceeds(figure, math.log(least), math.log(expected), ratio, error, math.inf)
                continue
            yield no_more(figure, 0.0, math.log(published["margin"][0]), ratio, error, math.inf)
            if name == SMALLER:
                figure = f"the same of independent masks / {design} ones, {name}"
                expected = math.log(published["expected_smaller"][0])
                yield exceeds(figure, 0.0, expected, -ratio, error, math.inf)


def _log_spread(result: Results, name: str) -> float:
    """Return the log of the standard deviation over seeds: of MPT − LML, or of an area."""
    metric = "area" if name == "rxnfp-bert" else "difference"
    return math.log(stdev(result.metric(metric, seed=seed) for seed in SEEDS[name]))


MASK_DESIGNS = Preset(
    "mask-designs",
    "Which design of masks has the smallest error? PPCA, a linear VAE and a language model",
    "With equally many masks, neither balanced masks nor adaptive ones (more masks of the sizes "
    "whose scores vary more) have an error more than 1.4 times that of independent masks of all "
    "sizes; for a PPCA with D = 200 both have a smaller one. Nested masks, whose sizes share a "
    "permutation, have an error more than 1.5 times as large. PPCA with K = 5, a linear VAE of "
    "digits, and a pretrained BERT of molecules; standard deviations over 80 to 200 seeds.",
    tuple(_specs()),
    {
        "margin": (1.4,),
        "expected_smaller": (1.25,),
        "worse": (1.5,),
        "expected_worse": (2.5,),
    },
    designs,
)

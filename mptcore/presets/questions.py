"""Presets on questions that the paper leaves open. Each makes a claim of our own that can fail."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mptcore.presets.judges import SEEDS, mean_over_seeds
from mptcore.presets.preset import Preset
from mptcore.presets.results import Comparison, Results, exceeds
from mptcore.specs import LinearGaussianExperiment, MaskedLmExperiment

Published = Mapping[str, tuple[float, ...]]

USUAL_RATE = 0.15
DIM = 100
UNBIASED = {1: (0.65, 0.9), 5: (0.65, 0.9), 20: (0.65, 0.8), 50: (0.4, 0.6)}
"""Rates between which the bias of one fixed rate changes its sign, by K of a PPCA with D = 100."""
EXPECTED = {
    1: (2.5, 1.7, 1.8),
    5: (12.0, 7.5, 15.0),
    20: (45.0, 19.0, 50.0),
    50: (100.0, 60.0, 50.0),
}
"""Measured sizes of the bias in nats: at 15 %, and at these two rates."""
MOLECULES = ("rxnfp-bert", "rxnmapper-albert")
BETWEEN = (0.35, 0.75)
RATES = [round(0.05 * i, 2) for i in range(1, 20)] + [0.99]


def own_presets() -> Iterator[Preset]:
    yield Preset(
        "unbiased-rate",
        "Which fixed masking rate is unbiased? PPCA, D = 100, K = 1, 5, 20, 50",
        "D times the score of a fixed rate exceeds the LML at 15 % for every K. It equals the LML "
        "at one rate: between 65 and 90 % for K up to a twentieth of D, between 65 and 80 % for a "
        "fifth, and between 40 and 60 % for a half. Five data sets for each K.",
        tuple(map(_at_each_twentieth, UNBIASED)),
        {
            "least": (0.0,),
            **{
                f"expected_{place}_{latent_dim}": (size,)
                for latent_dim, sizes in EXPECTED.items()
                for place, size in zip(("usual", "low", "high"), sizes, strict=True)
            },
        },
        unbiased_rate,
    )
    yield Preset(
        "unbiased-rate-molecules",
        "Which fixed masking rate is unbiased? Two language models of molecules",
        "The mean score of a pretrained language model over all rates is that of a rate between 35 "
        "and 75 %; at 15 % the score is higher by half a nat a token at least.",
        tuple(map(_all_rates, MOLECULES)),
        {
            "least": (0.0,),
            "least_usual": (0.5,),
            "expected_usual": (1.0,),
            "expected_low": (0.4,),
            "expected_high": (0.4,),
        },
        unbiased_rate_of_texts,
    )


def _ppca(
    latent_dim: int, data: dict[str, Any], seeds: Sequence[int], **evaluate: Any
) -> LinearGaussianExperiment:
    """Return a PPCA with the parameters of its simulated data."""
    common = {"latent_dim": latent_dim, "noise_precision": 5.0}
    return LinearGaussianExperiment.model_validate(
        {
            "model": {"family": "ppca", "init": "generator", **common},
            "data": {"source": "ppca", **data, **common},
            "evaluate": evaluate,
            "seeds": list(seeds),
        }
    )


def _at_each_twentieth(latent_dim: int) -> LinearGaussianExperiment:
    data = {"n": 500, "dim": DIM, "seed": "run"}
    masks = {"schedule": "sizes", "sizes": list(range(5, DIM + 1, 5)), "per_size": 10}
    return _ppca(latent_dim, data, SEEDS, masks=masks, bias=True)


def _all_rates(checkpoint: str) -> MaskedLmExperiment:
    return MaskedLmExperiment.model_validate(
        {
            "model": {"family": "masked_lm", "checkpoint": checkpoint},
            "data": {"source": "text", "file": "nci_smiles.txt", "n": 100, "seed": 1},
            "evaluate": {"masks": {"schedule": "rates", "rates": RATES, "per_size": 2}},
            "seeds": [SEEDS[0]],
            "compute": {"threads": 1},
        }
    )


def unbiased_rate(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test for each K that the bias D · S(m) − LML is above 0 at 15 % and at the lower rate, and
    below 0 at the higher one. Each seed has a data set of its own."""
    for (latent_dim, (low, high)), result in zip(UNBIASED.items(), results, strict=True):
        curves = [result.curve("bias", seed=seed) for seed in SEEDS]
        for place, rate, sign in (("usual", USUAL_RATE, 1), ("low", low, 1), ("high", high, -1)):
            values = [sign * curve.at(round(rate * DIM)) for curve in curves]
            figure = f"{'' if sign > 0 else '−'}bias at {rate:.0%}, K = {latent_dim}"
            (least,), (expected,) = published["least"], published[f"expected_{place}_{latent_dim}"]
            yield exceeds(figure, least, expected, *mean_over_seeds(values))


def unbiased_rate_of_texts(
    published: Published, results: Sequence[Results]
) -> Iterator[Comparison]:
    """Test for each checkpoint that the score exceeds the mean over all rates at 15 % and at the
    lower rate, and is below it at the higher one. The errors of a rate and of the mean are added as
    if they were independent, which makes them too large: the mean contains the rate."""
    for name, result in zip(MOLECULES, results, strict=True):
        curve = result.curve("score_by_rate", seed=SEEDS[0])
        mean, of_mean = _mean_score(result)
        errors = dict(zip(curve.x, curve.std_err, strict=True))
        least = {"usual": published["least_usual"][0]}
        for place, rate, sign in (
            ("usual", USUAL_RATE, 1),
            ("low", BETWEEN[0], 1),
            ("high", BETWEEN[1], -1),
        ):
            error = errors[rate]
            if error is None:
                raise KeyError("the standard errors of the curve")
            figure = f"{'score' if sign > 0 else '−score'} at {rate:.0%} less the mean, {name}"
            yield exceeds(
                figure,
                least.get(place, published["least"][0]),
                published[f"expected_{place}"][0],
                sign * (curve.at(rate) - mean),
                math.hypot(error, of_mean),
                math.inf,
            )


def _mean_score(result: Results) -> tuple[float, float]:
    """Return the mean of the curve over the rates, in nats a token, and its standard error."""
    scale = 512 * result.metric("area_width", seed=SEEDS[0])
    area, error = result.metric("area", seed=SEEDS[0]), result.std_err("area", seed=SEEDS[0])
    return area / scale, error / scale

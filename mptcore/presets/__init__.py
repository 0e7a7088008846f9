"""The paper's experiments, and claims of our own, as named lists of specs, each with its published
values and a verdict.

Uses only pydantic and the standard library, so that the service may import it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mptcore.presets import judges
from mptcore.presets.language import language_presets
from mptcore.presets.mask_designs import MASK_DESIGNS
from mptcore.presets.model_choice import MODEL_CHOICE
from mptcore.presets.preset import Preset
from mptcore.presets.questions import own_presets
from mptcore.presets.results import Comparison, Curve, Results, Verdict
from mptcore.presets.text_benchmarks import BLIMP, PROTEIN_GYM
from mptcore.presets.training_rates import TRAINING_RATES, TRAINING_RATES_VAE
from mptcore.specs import LinearGaussianExperiment, VaeExperiment

__all__ = ["PRESETS", "Comparison", "Curve", "Preset", "Results", "Verdict"]


def _ppca(
    n: int,
    dim: int,
    latent_dim: int,
    masks: dict[str, Any],
    *,
    data_seed: int | str = 1991,
    train: dict[str, Any] | None = None,
    **evaluate: Any,
) -> LinearGaussianExperiment:
    """Return a PPCA on the published data, starting at the data's parameters or, for training, at
    random."""
    common = {"latent_dim": latent_dim, "noise_precision": 5.0}
    generator = {"family": "ppca", "init": "generator", **common}
    start = {"family": "ppca", "init": "random", **common}
    baseline = evaluate.pop("baseline", False)
    data = {"source": "ppca", "n": n, "dim": dim, "noise": "shared", "seed": data_seed, **common}
    return LinearGaussianExperiment.model_validate(
        {
            "model": start if train else generator,
            "baseline": generator if baseline else None,
            "data": data,
            "train": train,
            "evaluate": {"masks": masks, **evaluate},
            "seeds": list(judges.SEEDS),
        }
    )


def _all(per_size: int) -> dict[str, Any]:
    return {"schedule": "all", "per_size": per_size}


def _training(masks: dict[str, Any], epochs: int, curve_at: Sequence[int] = ()) -> dict[str, Any]:
    return {"objective": "mpt", "epochs": epochs, "masks": masks, "curve_at": list(curve_at)}


_IMAGES = {"mnist": "MNIST", "fashion_mnist": "Fashion MNIST"}


def _fig3(
    name: str, source: str, model: dict[str, Any], trainings: Sequence[dict[str, Any]], **spec: Any
) -> Preset:
    """Return the experiments on images for each training, compared by their marginal
    likelihoods."""
    data = {"source": source, **spec.pop("data")}
    judge, published, statement = (spec.pop(what) for what in ("judge", "published", "statement"))
    compute = {"precision": "float32", "max_runtime_s": 6 * 3600}
    common = {"model": model, "data": data, "compute": compute, **spec}
    specs = tuple(VaeExperiment.model_validate({**common, "train": one}) for one in trainings)
    row = "upper" if model["family"] == "linear_vae" else "lower"
    kind, images = model["family"].replace("_", " ").replace("vae", "VAE"), _IMAGES[source]
    title = f"Fig. 3, {row} row: a {kind} of {images}"
    return Preset(name, title, statement, specs, published, judge)


def _at_rate(rate: float) -> dict[str, Any]:
    """Return a schedule with one mask a step."""
    return {"schedule": "fixed", "rate": rate, "per_size": 1}


def _fig3_linear(name: str, source: str, grid: dict[str, float]) -> Preset:
    """Return the linear VAE. Posteriors of Fashion MNIST are as far as 9 from zero, where the LML
    needs a larger grid. Few masks are scored: the statement is about the LML alone."""
    objectives = {"objective": ["mpt", "elbo"], "masks": _at_rate(0.15), "evaluate_every": 20}
    return _fig3(
        name,
        source,
        {"family": "linear_vae", "latent_dim": 2, "likelihood": {"distribution": "bernoulli"}},
        [{**objectives, "epochs": 800, "learning_rate": 0.01}],
        data={"n": 2000, "binarize": "threshold"},
        evaluate={"masks": _at_rate(0.15), "lml": {"method": "uniform_grid", **grid}},
        seeds=list(judges.SEEDS),
        statement="Trained with MPT and with the ELBO from the same starts, both reach a similar "
        "LML (within 3 nats, mean over starts), and the ELBO stays below it.",
        published={
            "gap": (0.0,),
            "margin": (3.0,),
            "least_rise": (5.0,),
            "expected_rise": (10.0,),
            "least_slack": (0.0,),
            "expected_slack": (0.5,),
        },
        judge=judges.fig3_linear,
    )


def _fig3_vae(name: str, source: str) -> Preset:
    common = {"latent_dim": 8, "noise_precision": 20.0}
    likelihood = {"distribution": "gaussian", "noise_precision": 20.0}
    network = {"layers": "dense", "widths": [256]}
    epochs = {"epochs": 200, "batch_size": 100, "evaluate_every": 50}
    return _fig3(
        name,
        source,
        {"family": "vae", "latent_dim": 8, "likelihood": likelihood, "network": network},
        [
            {"objective": ["mpt", "elbo"], "masks": _at_rate(0.33), **epochs},
            {"objective": "mpt", "masks": {"schedule": "uniform", "per_size": 1}, **epochs},
        ],
        data={"n": 1250, "heldout": 0.2},
        evaluate={"masks": _at_rate(0.33)},  # the statement is about the LML alone
        baseline={"family": "ppca", "init": "maximum_likelihood", **common},
        seeds=list(judges.VAE_SEEDS),
        statement="With MPT training, of masks of 33 % and of uniform sizes, the LML of held-out "
        "images rises and does not fall again. It ends no lower than with the ELBO from the same "
        "starts, and above that of a PPCA of the same K and noise.",
        published={
            "least_rise": (5.0,),
            "expected_rise": (50.0,),
            "fall": (0.0,),
            "short": (0.0,),
            "least_lead": (0.0,),
            "expected_lead": (20.0,),
            "margin": (10.0,),
        },
        judge=judges.fig3_vae,
    )


_FIXED_STEP = {"schedule": "fixed", "size": 2, "per_size": 10}
_FIG2_FIXED = _ppca(2000, 10, 2, _all(20), train=_training(_FIXED_STEP, 1000))
_CONVERGES = "MPT − LML goes to 0 as P grows."
_FIG2_MAXIMUM = {"maximum_lml": (-6.2246,), "least_rise": (5.0,), "expected_rise": (20.0,)}
_FIG2 = "N = 2000, D = 10, K = 2, five starts, 1000 epochs"

_LONG_TAIL = {"tail_from": (0.9,), "least_tail": (0.5,), "expected_tail": (0.6,)}

_LIST = [
    Preset(
        "table1",
        "Table 1: MPT and LML of PPCA",
        "LML −60.34; MPT −60.44 ± 0.47, −60.22 ± 0.12, −60.34 ± 0.03 for P = 1, 10, 100.",
        tuple(_ppca(1000, 200, 5, _all(p)) for p in (1, 10, 100)),
        {"lml": (-60.34,), "mpt": (-60.44, -60.22, -60.34), "sd": (0.47, 0.12, 0.03)},
        judges.table1,
    ),
    Preset(
        "fig1-left",
        "Fig. 1, left: convergence in P, D = 5",
        _CONVERGES,
        (_ppca(100, 5, 2, _all(200), data_seed="run", convergence=True),),
        {"lml": (-5.0598, -5.0486, -4.8969, -5.0360, -4.2694), "limit": (0.0,), "margin": (0.2,)},
        judges.fig1_converges,
    ),
    Preset(
        "fig1-center",
        "Fig. 1, center: convergence in P, D = 50",
        _CONVERGES,
        (_ppca(100, 50, 2, _all(200), data_seed="run", convergence=True),),
        {
            "lml": (-17.4702, -15.5121, -17.8629, -18.3654, -16.1732),
            "limit": (0.0,),
            "margin": (0.2,),
        },
        judges.fig1_converges,
    ),
    Preset(
        "fig1-right",
        "Fig. 1, right: a fixed mask size is biased, D = 512",
        "With masks of size 76 alone D · S(76) − LML goes to a bias, +7.29, and not to 0.",
        (
            _ppca(
                100,
                512,
                2,
                {"schedule": "fixed", "size": 76, "per_size": 2000},
                data_seed=111,
                convergence=True,
            ),
        ),
        {
            "lml": (-121.266,),
            "biased_score": (-113.973,),
            "bias": (7.29,),
            "std_err": (0.009,),
            "margin": (0.05,),
        },
        judges.fig1_biased,
    ),
    Preset(
        "fig2-left",
        "Fig. 2, left: training by MPT maximises the LML",
        f"{_FIG2}, all mask sizes, P = 1: the LML rises to that of the true parameters and just "
        "past it, to the closed-form maximum.",
        (_ppca(2000, 10, 2, _all(20), train=_training(_all(1), 1000)),),
        {"true_lml": (-6.2515,), **_FIG2_MAXIMUM},
        judges.fig2_maximised,
    ),
    Preset(
        "fig2-center",
        "Fig. 2, center: training with a fixed mask size, the score",
        f"{_FIG2}, mask size 2: the MPT score is above the LML by a nearly constant bias.",
        (_FIG2_FIXED,),
        {"least_bias": (0.5,), "expected_bias": (1.0,), "most_change": (0.5,)},
        judges.fig2_biased,
    ),
    Preset(
        "fig2-right",
        "Fig. 2, right: training with a fixed mask size, the LML",
        f"{_FIG2}, mask size 2: the LML is still maximised, more slowly.",
        (_FIG2_FIXED,),
        {"margin": (1.5,), "least_short": (0.027,), "expected_short": (0.4,), **_FIG2_MAXIMUM},
        judges.fig2_slower,
    ),
    _fig3_linear("fig3-linear-mnist", "mnist", {"nodes": 150, "extent": 6.0}),
    _fig3_linear("fig3-linear-fmnist", "fashion_mnist", {"nodes": 225, "extent": 9.0}),
    _fig3_vae("fig3-vae-mnist", "mnist"),
    _fig3_vae("fig3-vae-fmnist", "fashion_mnist"),
    Preset(
        "fig4-left",
        "Fig. 4, left: the MPT curve, K = 5, P = 1",
        "The area under the curve is the LML; a long tail above 90 %.",
        (_ppca(1000, 200, 5, _all(1)),),
        {"difference": (0.0,), "margin": (1.3,), **_LONG_TAIL},
        judges.fig4_long_tail,
    ),
    Preset(
        "fig4-center",
        "Fig. 4, center: the MPT curve, K = 5, P = 100",
        "The area under the curve is the LML; a long tail above 90 %.",
        (_ppca(1000, 200, 5, _all(100)),),
        {"difference": (0.0,), "margin": (0.1,), **_LONG_TAIL},
        judges.fig4_long_tail,
    ),
    Preset(
        "fig4-right",
        "Fig. 4, right: the MPT curve, K = 50",
        "The area under the curve is the LML; the curve falls from about 50 %.",
        (_ppca(1000, 200, 50, _all(5)),),
        {
            "difference": (0.0,),
            "margin": (0.6,),
            "decay_from": (0.5,),
            "early": (0.1,),
            "early_margin": (0.3,),
        },
        judges.fig4_early_decay,
    ),
    Preset(
        "fig5-left",
        "Fig. 5, left: the MPT curve in training",
        "N = 1000, D = 50, K = 2, P = 20: from a flat curve the area rises to that of the true "
        "parameters in 600 epochs.",
        (
            _ppca(
                1000,
                50,
                2,
                _all(20),
                train=_training(_all(20), 600, range(0, 601, 100)),
                baseline=True,
            ),
        ),
        {"gap_to_truth": (0.0,), "margin": (0.5,), "least_rise": (5.0,), "expected_rise": (30.0,)},
        judges.fig5_area,
    ),
    *language_presets(),
    BLIMP,
    PROTEIN_GYM,
    *own_presets(),
    MASK_DESIGNS,
    MODEL_CHOICE,
    TRAINING_RATES,
    TRAINING_RATES_VAE,
]
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _LIST}

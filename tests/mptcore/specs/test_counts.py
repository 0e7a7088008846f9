"""Number and sizes of the masks that a spec scores, and the grids it uses."""

import math
from typing import Any

import pytest

from mptcore.specs import (
    AllSizes,
    FixedSize,
    LinearGaussianExperiment,
    SpecError,
    VaeExperiment,
    validate_spec,
)
from mptcore.specs.evaluate import pilot_masks
from mptcore.specs.families.vae.models import Convolutional, Dense, GaussHermite, UniformGrid
from mptcore.specs.masks import ListedSizes, Ramp, Rates, UniformSize, masks_of_size, size_of_rate
from tests.mptcore.specs.test_refused_words import VECTORS
from tests.support.vae_specs import DEEP, LINEAR, changed


def vectors(**changes: Any) -> LinearGaussianExperiment:
    spec = validate_spec({**VECTORS, **changes})
    assert isinstance(spec, LinearGaussianExperiment)
    return spec


def latent(base: dict[str, Any], **changes: Any) -> VaeExperiment:
    spec = validate_spec({**base, **changes})
    assert isinstance(spec, VaeExperiment)
    return spec


def test_a_schedule_has_its_sizes() -> None:
    assert list(AllSizes(per_size=2).mask_sizes(4)) == [1, 2, 3, 4]
    assert AllSizes(per_size=2).count(4) == 8
    listed = ListedSizes(schedule="sizes", sizes=(3, 1), per_size=5)
    assert (listed.mask_sizes(4), listed.count(4)) == ((3, 1), 10)
    fixed = FixedSize(schedule="fixed", rate=0.4, per_size=5)
    assert (fixed.mask_sizes(10), fixed.step_count(10)) == ((4,), 5)
    uniform = UniformSize(schedule="uniform", per_size=3)
    assert (list(uniform.mask_sizes(4)), uniform.step_count(4)) == ([1, 2, 3, 4], 3)
    rates = Rates(schedule="rates", rates=(0.2, 0.5, 1), per_size=2)
    assert (rates.mask_sizes(10), rates.step_count(10)) == ((2, 5, 10), 6)
    ramp = Ramp(schedule="ramp", start=0.2, end=0.8, per_size=3)
    assert [ramp.size_at(fraction, 10) for fraction in (0, 0.5, 1)] == [2, 5, 8]
    assert (ramp.mask_sizes(10), ramp.step_count(10)) == ((2,), 3)


def test_a_rate_is_a_number_of_dimensions_rounded_down() -> None:
    assert [size_of_rate(rate, 512) for rate in (0.15, 0.001, 1)] == [76, 1, 512]
    assert size_of_rate(0.29, 100) == 29  # 28.999999999999996


def test_all_masks_of_a_size_are_counted_up_to_a_bound() -> None:
    assert [masks_of_size(6, size, 1000) for size in range(1, 7)] == [6, 15, 20, 15, 6, 1]
    assert masks_of_size(6, 3, 20) == 20
    assert masks_of_size(10**6, 5 * 10**5, 1000) > 1000
    every = AllSizes(design="exhaustive")
    assert every.count(6) == 2**6 - 1
    assert every.problems(19, "") == []  # 92378 of nine or ten
    assert every.problems(20, "/masks")[0].pointer == "/masks/design"
    exactly = FixedSize(schedule="fixed", size=1, design="exhaustive")
    assert exactly.problems(100_000, "") == []
    assert len(exactly.problems(100_001, "")) == 1


@pytest.mark.parametrize(("per_size", "windows"), [(1, 1), (7, 1), (12, 3), (16, 4), (100, 10)])
def test_a_balanced_design_keeps_at_least_the_root_of_its_permutations(
    per_size: int, windows: int
) -> None:
    masks = AllSizes(per_size=per_size, design="balanced")
    assert masks.windows_per_permutation == windows
    assert AllSizes(per_size=per_size).windows_per_permutation == 1


def test_the_pilot_of_a_target() -> None:
    assert pilot_masks(6, 10_000) == 43  # 256 in all
    assert pilot_masks(100, 10_000) == 8
    assert pilot_masks(6, 300) == 25  # no more than half of all
    assert pilot_masks(6, 100) == 11  # 64 in all


def test_the_masks_of_scores_and_of_training_are_counted() -> None:
    assert vectors(seeds=[1, 2]).mask_count() == 2 * 6 * 3
    train = {"epochs": 4, "curve_at": [0, 2], "masks": {"schedule": "all", "per_size": 2}}
    whole = vectors(seeds=[1, 2], train=train)
    assert whole.evaluations == 2 * 3
    assert whole.mask_count() == 2 * 3 * 6 * 3 + 2 * (4 + 1) * 12
    batches = vectors(seeds=[1, 2], train={**train, "batch_size": 7})
    assert batches.mask_count() == 2 * 3 * 6 * 3 + 2 * (4 * 3 + 1) * 12
    masks = {"schedule": "fixed", "rate": 0.5, "per_size": 3}
    vae = {"objective": ["mpt", "elbo"], "epochs": 4, "batch_size": 1000, "masks": masks,
           "curve_at": [1]}  # fmt: skip
    one = {"masks": {"schedule": "fixed", "rate": 0.5, "per_size": 10}}
    found = latent(LINEAR, train=vae, evaluate=one, seeds=[1, 2, 3])
    assert found.evaluations == 3 * 2 * 2
    assert found.mask_count() == 12 * 10 + 3 * 2 * (4 * 2 + 1) * 3
    assert latent(LINEAR, evaluate=one, seeds=[1, 2, 3]).mask_count() == 30


def test_a_grid_is_compared_with_a_wider_one_and_with_one_of_another_kind() -> None:
    gauss, uniform = GaussHermite(method="gauss_hermite", nodes=20), uniform_grid(60, 6.0)
    assert gauss.size(3) == 8000
    assert gauss.doubled() == GaussHermite(method="gauss_hermite", nodes=40)
    assert gauss.of_another_kind() == uniform_grid(40, 8.0)
    assert uniform.doubled() == uniform_grid(120, 7.5)
    other = uniform.of_another_kind()
    assert other.nodes == 91
    assert other.extent == pytest.approx(7.02)


def uniform_grid(nodes: int, extent: float) -> UniformGrid:
    return UniformGrid(method="uniform_grid", nodes=nodes, extent=extent)


def test_the_maximum_of_nodes_leaves_room_for_doubling() -> None:
    for dims in (1, 2, 3):
        most = math.floor(2_000_000 ** (1 / dims) / 2)
        if most > 2000:
            continue
        spec = changed(changed(LINEAR, "model/latent_dim", dims), "model/conditionals/nodes", most)
        validate_spec(spec)


def test_annealing_counts_for_its_chains() -> None:
    ais = {"temperatures": 100, "chains": 5, "leapfrog_steps": 7, "observations": 11}
    plain = latent(changed(DEEP, "evaluate/ais", None)).work()
    both = [
        latent(changed(DEEP, "evaluate/ais", {**ais, "simulated": simulated})).work() - plain
        for simulated in (0, 3)
    ]
    assert both[1] * 11 == both[0] * (11 + 2 * 3)
    assert both[0] == 64 * 2 * 100 * 7 * 11 * 5


def test_the_work_of_a_vae_is_that_of_scores_training_and_its_likelihood() -> None:
    """Outputs of the decoder: at 20² nodes for each of 3 masks and for the LML, after each curve;
    in training for the masks of each epoch, and for the LML where it is recorded."""
    one = {"masks": {"schedule": "fixed", "rate": 0.5, "per_size": 3}}
    assert latent(LINEAR, evaluate=one, seeds=[1, 2]).work() == 2 * 1797 * 64 * (3 * 400 + 400)
    train = {"objective": ["mpt", "elbo"], "epochs": 9, "evaluate_every": 4, "curve_at": [5],
             "masks": {**one["masks"], "per_size": 2}, "lml_samples": 7}  # fmt: skip
    trained = 2 * (3 * 400 + 400) + 9 * 2 * 400 + 3 * 7
    assert latent(LINEAR, evaluate=one, train=train).work() == 2 * 1797 * 64 * trained
    sampled = {**one, "lml": {"method": "iwae", "samples": 100}}
    assert latent(DEEP, evaluate=sampled).work() == 1797 * 64 * (3 * 4 + 100)
    assert latent(DEEP, evaluate=one).work() == 1797 * 64 * (3 * 4 + 500)


def test_the_activations_of_a_network_are_counted() -> None:
    dense = Dense(layers="dense", widths=(5, 7))
    assert dense.numbers_per_observation(64) == 64 + 5 + 7
    halved = Convolutional(layers="convolutional", channels=(3, 5), width=11)
    assert halved.numbers_per_observation(64) == 64 + 11 + 3 * 16 + 5 * 4
    linear = latent(LINEAR).model
    assert linear.numbers_per_observation(64) == 64


def test_the_last_step_of_an_epoch_may_be_a_short_one() -> None:
    train = {"objective": "mpt", "epochs": 2, "batch_size": 1000}
    assert latent(DEEP, train=train).mask_count() - latent(DEEP).mask_count() == 2 * 2 + 1
    kept = 1797 - 359  # a fifth is held out
    whole = {**train, "batch_size": kept}
    assert latent(DEEP, train=whole).mask_count() - latent(DEEP).mask_count() == 2 + 1
    with pytest.raises(SpecError, match=f"at most the {kept} observations that are trained on"):
        latent(DEEP, train={**train, "batch_size": kept + 1})

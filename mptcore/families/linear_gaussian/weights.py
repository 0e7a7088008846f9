"""Save and load densities as tensors named SEED/loadings, SEED/mean and SEED/noise_variance."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.protocol.records import Artifact, Log, RunError
from mptcore.runtime.tensor_files import keep_weights, load_weights
from mptcore.specs.families.linear_gaussian import LinearGaussian

FAMILY = "linear_gaussian"
PARTS = ("loadings", "mean", "noise_variance")


def save_densities(
    densities: Mapping[int, LowRankGaussian],
    folder: Path | None,
    data: Mapping[str, Tensor],
    header: Mapping[str, str],
) -> Artifact | Log:
    """Write the density of each seed, and tensors and a header of the data, under `folder`, if
    there is one."""
    tensors: dict[str, Tensor] = {
        f"{seed}/{part}": getattr(density, part).double()
        for seed, density in densities.items()
        for part in PARTS
    }
    seeds = {"seeds": ",".join(map(str, densities))}
    return keep_weights(FAMILY, {**tensors, **data}, {**seeds, **header}, folder)


def load_density(spec: LinearGaussian, dim: int, seed: int) -> LowRankGaussian:
    """Load the density that spec.experiment saved for a seed, or for its first seed if it did not
    have this one. Raises RunError if none fits."""
    tensors, header = load_weights(FAMILY, str(spec.experiment))
    seeds = header["seeds"].split(",")
    saved_seed = str(seed) if str(seed) in seeds else seeds[0]
    density = LowRankGaussian(*(tensors[f"{saved_seed}/{part}"] for part in PARTS))
    shape = (density.dim, density.loadings.shape[1])
    if shape != (dim, spec.latent_dim):
        detail = f"has weights for D = {shape[0]}, K = {shape[1]}; this spec has D = {dim}, K = "
        raise RunError("invalid", f"experiment {spec.experiment} {detail}{spec.latent_dim}")
    noise = density.noise_variance
    if spec.family == "ppca" and (noise - noise[0]).abs().max() > 1e-12 * noise[0]:
        detail = "has a noise variance for each dimension: use family factor_analysis"
        raise RunError("invalid", f"experiment {spec.experiment} {detail}")
    return density

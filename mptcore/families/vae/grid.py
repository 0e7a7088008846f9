"""Grids over z that replace its prior N(0, I)."""

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from mptcore.specs import GaussHermite, UniformGrid
from mptcore.specs.families.vae.models import AnyGrid


@dataclass(frozen=True)
class Nodes:
    """Nodes and the logarithms of their weights, which sum to one. A mixture over the nodes is
    therefore a model of its own with coherent conditionals."""

    z: Tensor  # (G, K)
    log_weights: Tensor  # (G,)


def nodes_of(spec: AnyGrid, latent_dim: int) -> Nodes:
    """Return the product of the same nodes in each latent dimension, in float64."""
    match spec:
        case GaussHermite():
            # for exp(−z²/2): the prior is in the weights
            places, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(spec.nodes))
            logs = weights.log()
        case UniformGrid():
            places = torch.linspace(-spec.extent, spec.extent, spec.nodes, dtype=torch.float64)
            logs = -places.square() / 2
        case _:
            assert_never(spec)
    z = torch.cartesian_prod(*[places] * latent_dim).view(-1, latent_dim)
    total = torch.cartesian_prod(*[logs] * latent_dim).view(-1, latent_dim).sum(-1)
    return Nodes(z, total - total.logsumexp(0))

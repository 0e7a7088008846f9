"""p(x_j | z) as a function of the decoder's outputs, for both likelihoods."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mptcore.runtime.rng import draw_normal, draw_uniform
from mptcore.specs import Bernoulli, Gaussian

CHUNK = 2**24
"""Number of elements of a tensor over observations, nodes and dimensions that is only built in
parts."""


class Likelihood(ABC):
    """Distribution of x given a decoder's outputs (..., D)."""

    @abstractmethod
    def log_prob(self, x: Tensor, outputs: Tensor) -> Tensor:
        """Return log p(x_j | z), elementwise."""

    @abstractmethod
    def slope(self, x: Tensor, outputs: Tensor) -> Tensor:
        """Return the derivative of log p(x_j | z) by the output, elementwise."""

    @abstractmethod
    def information(self, outputs: Tensor) -> Tensor:
        """Return the Fisher information about each output."""

    @abstractmethod
    def node_log_probs(self, x: Tensor, outputs: Tensor, observed: Tensor | None) -> Tensor:
        """Return log p(x_R | z) (N, G) for observations (N, D) and outputs (G, D), by matrix
        products. R is given as 0 and 1, (D,) or (N, D), or is all dimensions."""

    @abstractmethod
    def mixed_probs(self, x: Tensor, outputs: Tensor, share: Tensor) -> Tensor:
        """Return Σ_g share_ng p(x_nj | z_g) (N, M) for observations (N, M), outputs (G, M) and
        shares (N, G). It is 0 if it is too small for its floating-point type."""

    @abstractmethod
    def mixed_log_probs(self, x: Tensor, outputs: Tensor, log_share: Tensor) -> Tensor:
        """Return log Σ_g share_ng p(x_nj | z_g) (N, M) for observations (N, M), outputs (G, M) and
        shares (N, G)."""

    @abstractmethod
    def independent(self, x: Tensor) -> Tensor:
        """Return the outputs (D,) of the model with independent dimensions for data (N, D)."""

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """Return E[x_j | z]."""

    @abstractmethod
    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw x_j given z."""


class BernoulliLikelihood(Likelihood):
    """Bernoulli likelihood. The decoder's outputs are log odds."""

    def log_prob(self, x: Tensor, outputs: Tensor) -> Tensor:
        return x * outputs - F.softplus(outputs)

    def slope(self, x: Tensor, outputs: Tensor) -> Tensor:
        return x - outputs.sigmoid()

    def information(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid() * (-outputs).sigmoid()

    def node_log_probs(self, x: Tensor, outputs: Tensor, observed: Tensor | None) -> Tensor:
        log_norm = F.softplus(outputs)
        if observed is None:
            return x @ outputs.mT - log_norm.sum(-1)
        return (x * observed) @ outputs.mT - observed @ log_norm.mT

    def mixed_probs(self, x: Tensor, outputs: Tensor, share: Tensor) -> Tensor:
        # Both products, since 1 − p loses its digits where p is near 1.
        of_one, of_zero = share @ outputs.sigmoid(), share @ (-outputs).sigmoid()
        return torch.where(x > 0.5, of_one, of_zero)

    def mixed_log_probs(self, x: Tensor, outputs: Tensor, log_share: Tensor) -> Tensor:
        mixed = self.mixed_probs(x, outputs, log_share.exp())  # (N, M)
        tiny = torch.finfo(x.dtype).tiny
        logs = mixed.clamp(min=tiny).log()
        underflowed = (mixed < tiny).nonzero()  # (U, 2)
        if len(underflowed) == 0:
            return logs
        rows = max(1, CHUNK // log_share.shape[-1])
        signed = torch.where(x > 0.5, 1.0, -1.0).to(x)
        exact = [
            (log_share[n] + F.logsigmoid(signed[n, m, None] * outputs.mT[m])).logsumexp(-1)
            for n, m in (part.unbind(-1) for part in torch.split(underflowed, rows))
        ]
        return logs.index_put(underflowed.unbind(-1), torch.cat(exact))

    def independent(self, x: Tensor) -> Tensor:
        min_mean = 1 / (2 * len(x))  # a constant pixel must keep a chance to change
        return x.mean(0).clamp(min_mean, 1 - min_mean).logit()

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        uniform = draw_uniform(outputs.shape, outputs, generator)
        return (uniform < outputs.sigmoid()).to(outputs)


class GaussianLikelihood(Likelihood):
    """Gaussian likelihood with a fixed noise precision. The decoder's outputs are means."""

    def __init__(self, noise_precision: float):
        self.precision = noise_precision
        self.constant = 0.5 * math.log(noise_precision / (2 * math.pi))

    def log_prob(self, x: Tensor, outputs: Tensor) -> Tensor:
        return self.constant - 0.5 * self.precision * (x - outputs).square()

    def slope(self, x: Tensor, outputs: Tensor) -> Tensor:
        return self.precision * (x - outputs)

    def information(self, outputs: Tensor) -> Tensor:
        return torch.full_like(outputs, self.precision)

    def node_log_probs(self, x: Tensor, outputs: Tensor, observed: Tensor | None) -> Tensor:
        weight = torch.ones_like(x[0]) if observed is None else observed
        centre = outputs.detach().mean(0)  # squares of large numbers lose the digits of small ones
        x, outputs = x - centre, outputs - centre
        cross = (x * weight) @ outputs.mT
        squares = (x.square() * weight).sum(-1, keepdim=True) + weight @ outputs.square().mT
        constant = self.constant * weight.sum(-1, keepdim=True)
        return constant - self.precision * (0.5 * squares - cross)

    def mixed_probs(self, x: Tensor, outputs: Tensor, share: Tensor) -> Tensor:
        return self.mixed_log_probs(x, outputs, share.log()).exp()

    def mixed_log_probs(self, x: Tensor, outputs: Tensor, log_share: Tensor) -> Tensor:
        width = max(1, CHUNK // log_share.numel())
        parts = zip(torch.split(x, width, -1), torch.split(outputs, width, -1), strict=True)
        # For the gradient each part is computed again: all of them are too many to keep.
        logs = [
            checkpoint(self._mixed, x_part, outputs_part, log_share, use_reentrant=False)
            for x_part, outputs_part in parts
        ]
        return torch.cat(logs, -1)

    def _mixed(self, x: Tensor, outputs: Tensor, log_share: Tensor) -> Tensor:
        return (log_share[..., None] + self.log_prob(x[:, None], outputs)).logsumexp(1)

    def independent(self, x: Tensor) -> Tensor:
        return x.mean(0)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        noise = draw_normal(outputs.shape, outputs, generator)
        return outputs + noise / math.sqrt(self.precision)


def likelihood_of(spec: Bernoulli | Gaussian) -> Likelihood:
    match spec:
        case Bernoulli():
            return BernoulliLikelihood()
        case Gaussian():
            return GaussianLikelihood(spec.noise_precision)

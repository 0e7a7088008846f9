"""Small sampled VAEs whose posteriors or conditionals are known."""

import math
from functools import cache

import torch
from torch import Tensor, nn

from benchmarks.calibration.vae import CASES, Case
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import moment_of
from mptcore.families.linear_gaussian.routes import moment_solver
from mptcore.families.linear_gaussian.solver import Solver
from mptcore.families.vae.likelihoods import GaussianLikelihood
from mptcore.families.vae.networks import dense, linear
from mptcore.families.vae.proposal import Proposal
from mptcore.families.vae.sampled import SampledVae
from mptcore.specs import Dense, Importance, Recursive

DIM, LATENT_DIM, PRECISION, N = 12, 2, 4.0, 40


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@cache
def case_of(name: str) -> Case:
    """A case of the calibration; its truth by quadrature takes a second."""
    return CASES[name]()


def prior_of(x: Tensor) -> Proposal:
    """A proposal that knows nothing of x."""
    identity = torch.eye(LATENT_DIM).double().expand(2, len(x), LATENT_DIM, LATENT_DIM)
    zero = x.new_zeros(2, len(x), LATENT_DIM)
    return Proposal(zero, identity, torch.full_like(zero[..., 0], math.log(0.5)))


def put(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)


def linear_gaussian(conditionals: Recursive | Importance, *, exact: bool) -> SampledVae:
    """Orthogonal loadings, so that the posterior has independent dimensions; the encoder is that
    posterior, or twice as wide and shifted."""
    draws = torch.Generator().manual_seed(2)
    basis = torch.linalg.qr(torch.randn(DIM, LATENT_DIM, generator=draws, dtype=torch.float64)).Q
    loadings = basis * torch.tensor([2.0, 1.0])
    encoder, decoder = linear(DIM, LATENT_DIM)
    model = SampledVae(
        encoder, decoder, GaussianLikelihood(PRECISION), LATENT_DIM, conditionals, DIM
    ).double()
    assert isinstance(decoder.last, nn.Linear)
    put(decoder.last.weight, loadings)
    put(decoder.last.bias, torch.linspace(-1, 1, DIM))
    variance = 1 / (1 + PRECISION * loadings.square().sum(0))
    gain = PRECISION * variance[:, None] * loadings.T
    spread = torch.zeros(LATENT_DIM, dtype=torch.float64)
    if not exact:
        gain, spread = gain * 0.8, spread + math.log(4)
    put(encoder.head.weight, torch.cat([gain, torch.zeros_like(gain)]))
    shift = -gain @ decoder.last.bias.detach()
    put(encoder.head.bias, torch.cat([shift, variance.log() + spread]))
    return model


def ppca_of(model: SampledVae, x: Tensor) -> Solver:
    assert isinstance(model.decoder.last, nn.Linear)
    noise = torch.full((DIM,), 1 / PRECISION, dtype=torch.float64)
    mean = model.decoder.last.bias.detach()
    density = LowRankGaussian(model.decoder.last.weight.detach(), mean, noise)
    return moment_solver(
        density.loadings, density.noise_variance, moment_of(x, mean, 1 / PRECISION)
    )


def density_of(model: SampledVae) -> torch.distributions.Distribution:
    assert isinstance(model.decoder.last, nn.Linear)
    mean, loadings = model.decoder.last.bias.detach(), model.decoder.last.weight.detach()
    noise = torch.full((DIM,), 1 / PRECISION, dtype=torch.float64)
    return torch.distributions.LowRankMultivariateNormal(mean, loadings, noise)


def simulated(model: SampledVae, n: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(7)
    z = torch.randn(n, LATENT_DIM, generator=draws, dtype=torch.float64)
    with torch.no_grad():
        return model.likelihood.sample(model.decoder(z), draws), z


def relu_vae(
    first: list[list[float]], kinks: list[float], last: list[list[float]], noise_precision: float
) -> SampledVae:
    """Return a VAE with the decoder last · relu(first · z − kinks) and a random encoder."""
    torch.manual_seed(3)
    networks = dense(
        Dense(layers="dense", widths=(len(kinks),), activation="relu"), len(last), len(first[0])
    )
    method = Importance(method="importance")
    likelihood = GaussianLikelihood(noise_precision)
    vae = SampledVae(*networks, likelihood, len(first[0]), method, len(kinks)).double()
    inner = next(part for part in vae.decoder.modules() if isinstance(part, nn.Linear))
    with torch.no_grad():
        inner.weight.copy_(torch.tensor(first))
        inner.bias.copy_(-torch.tensor(kinks))
        vae.decoder.last.get_parameter("weight").copy_(torch.tensor(last))
        vae.decoder.last.bias.zero_()
    return vae


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

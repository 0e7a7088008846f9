"""Proposals for z given the observed part of an observation. They are fitted by damped Gauss–Newton
steps to the modes of the posterior (Levenberg 1944; Marquardt 1963), and use the curvature there as
a scale. Starts of the fits are drawn from the prior."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mptcore.families.vae.likelihoods import GaussianLikelihood, Likelihood
from mptcore.families.vae.networks import Decoder, linearised, linearised_body
from mptcore.families.vae.vae import log_prior
from mptcore.runtime.out_of_memory import rowwise_on_oom
from mptcore.runtime.rng import draw_normal, draw_uniform

FREEDOM = 5
"""Degrees of freedom of the t distributions. On MNIST they keep Pareto's k̂ below 0.7 for 98 % of
the posteriors given the whole image; a normal distribution does for 92 %."""
PRIOR_SHARE = 0.1
"""Share of a component as wide as the prior, for regions that no mode covers."""
MAX_MODES, EVEN_SHARE = 5, 0.2
"""Maximum number of modes in a proposal, and the part of their share that is divided evenly,
because Laplace's approximation may give a mode far too little mass."""
SAME_WITHIN = 1.0
"""Two climbs have ended at the same mode if they are closer than this, in the scale of the mode."""
ADAPTED_SHARE = 0.5
"""Share of a component that is adapted to a pilot's draws."""
HALF_TRUST_ESS = 32
"""Effective sample size of a pilot at which its covariance and the curvature have equal weight."""
MIN_SHARE = 0.1
"""Minimum total share of the components in a refitted proposal, for any weights."""
CONVERGED = 1e-3
"""The fit stops when another step would gain less than this many nats, to second order."""
EASED, RAISED, MIN_RAISED = 0.3, 5.0, 0.03
"""Factors of the damping after a step that improves the fit and after one that does not, and its
minimum after the latter. The first step is not damped: it is exact for a linear decoder."""
PRIOR_DRAWS, LIKELIEST = 256, 16
"""Number of draws from the prior for each start, and number of the likeliest of them from which the
start is chosen."""
TAIL_FACTOR = 2.0
"""Factor on the draws for every second start, for modes in the prior's tails."""
MAX_LOG_PROB_GAP = 20.0
"""Maximum nats by which a masked value may be less likely, at the heaviest mode, than the mean
there. A value beyond it may come from another mode, which has hardly any mass given the observed
part."""


@dataclass(frozen=True)
class Proposal:
    """A mixture of multivariate t distributions for each of N observations: C modes, and a last
    component about the prior."""

    centres: Tensor  # (C + 1, N, K)
    roots: Tensor  # (C + 1, N, K, K), upper triangular: RᵀR is the inverse scale
    log_shares: Tensor  # (C + 1, N)

    def draw(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draw z, (draws, N, K)."""
        shape = (draws, *self.centres.shape[1:])
        normal = draw_normal(shape, self.centres, generator)
        squares = draw_normal((*shape[:-1], FREEDOM), self.centres, generator).square()
        standard = normal / squares.mean(-1, keepdim=True).sqrt()
        columns = standard.permute(1, 2, 0)[None]  # (1, N, K, draws)
        offsets = torch.linalg.solve_triangular(self.roots, columns, upper=True)
        by_component = self.centres[:, None] + offsets.permute(0, 3, 1, 2)  # (C + 1, draws, N, K)
        uniform = draw_uniform(shape[:2], self.log_shares, generator)
        component = (uniform > self.log_shares.exp().cumsum(0)[:-1, None]).sum(0)  # (draws, N)
        z: Tensor = by_component.gather(0, component[None, ..., None].expand(1, *shape))[0]
        return z

    def of(self, rows: Tensor | slice) -> "Proposal":
        """Return the proposals of some observations."""
        return Proposal(self.centres[:, rows], self.roots[:, rows], self.log_shares[:, rows])

    def mixed(self, other: "Proposal") -> "Proposal":
        """Return the mixture of this and another proposal for the same observations, with equal
        weights."""
        return Proposal(
            torch.cat([self.centres, other.centres]),
            torch.cat([self.roots, other.roots]),
            torch.cat([self.log_shares, other.log_shares]) - math.log(2),
        )

    def put(self, rows: Tensor, other: "Proposal") -> None:
        """Replace the proposals of some observations."""
        self.centres[:, rows] = other.centres
        self.roots[:, rows] = other.roots
        self.log_shares[:, rows] = other.log_shares

    def refitted(self, z: Tensor, log_weights: Tensor) -> "Proposal":
        """Refit all components but the prior's by one EM step towards the target (Cappé et al.
        2008, Sec. 5), from z of this proposal (draws, N, K) and their log weights (draws, N). A
        component with little weight in the draws changes little."""
        share = _truncated(log_weights).softmax(0).to(z)
        log_each, squares = self._each(z)
        responsibilities = (log_each.softmax(0) * share)[:-1]  # (C, draws, N)
        pulls = responsibilities * (FREEDOM + z.shape[-1]) / (FREEDOM + squares[:-1])
        tiny = torch.finfo(z.dtype).tiny
        mass = responsibilities.sum(1).clamp(min=tiny)  # (C, N)
        ess = mass.square() / responsibilities.square().sum(1).clamp(min=tiny)
        trust = (ess / (ess + HALF_TRUST_ESS))[..., None]
        mean = (pulls[..., None] * z).sum(1) / pulls.sum(1).clamp(min=tiny)[..., None]
        gaps = (z - mean[:, None]).transpose(1, 2)  # (C, N, draws, K)
        scatter = gaps.mT @ (pulls.mT[..., None] * gaps) / mass[..., None, None]
        old_covariance = torch.cholesky_inverse(self.roots[:-1].mT)
        covariance = trust[..., None] * scatter + (1 - trust[..., None]) * old_covariance
        roots = _factor(torch.cholesky_inverse(_factor(covariance))).mT
        centres = trust * mean + (1 - trust) * self.centres[:-1]
        shares = mass / mass.sum(0) + MIN_SHARE / len(mass)
        log_shares = shares.log().log_softmax(0) + math.log1p(-PRIOR_SHARE)
        log_prior_share = torch.full_like(log_shares[:1], math.log(PRIOR_SHARE))
        return Proposal(
            torch.cat([centres, self.centres[-1:]]),
            torch.cat([roots, self.roots[-1:]]),
            torch.cat([log_shares, log_prior_share]),
        )

    def adapted(self, z: Tensor, log_weights: Tensor) -> "Proposal":
        """Add a component at the weighted mean and covariance of a pilot's z (draws, N, K) and log
        weights (draws, N) (Cornuet et al. 2012), for posteriors that the curvature at their modes
        describes badly. With a small effective sample size the covariance is closer to that of the
        best mode."""
        share = log_weights.softmax(0).to(z)
        mean = (share[..., None] * z).sum(0)
        gaps = (z - mean).movedim(0, 1)  # (N, draws, K)
        trust = 1 / (1 + HALF_TRUST_ESS * share.square().sum(0))[:, None, None]  # of 1/ESS
        covariance = gaps.mT @ (share.mT[..., None] * gaps)
        mixed = trust * covariance + (1 - trust) * torch.cholesky_inverse(self.best_root().mT)
        root = _factor(torch.cholesky_inverse(_factor(mixed))).mT
        log_shares = self.log_shares + math.log1p(-ADAPTED_SHARE)
        log_share = torch.full_like(log_shares[:1], math.log(ADAPTED_SHARE))
        return Proposal(
            torch.cat([mean[None], self.centres]),
            torch.cat([root[None], self.roots]),
            torch.cat([log_share, log_shares]),
        )

    def best_root(self) -> Tensor:
        """Root of each observation's heaviest mode, (N, K, K)."""
        best = self.log_shares[:-1].argmax(0)
        return self.roots[best, torch.arange(len(best), device=best.device)]

    def log_prob(self, z: Tensor) -> Tensor:
        """Return log q(z) for z (draws, N, K): (draws, N)."""
        return self._each(z)[0].logsumexp(0)

    def _each(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return log share plus log density of each component, and the squared distance of z from
        its centre in its scale, (C + 1, draws, N) each (t: Kotz & Nadarajah 2004, Eq. 1.1)."""
        dim = z.shape[-1]
        half = (FREEDOM + dim) / 2
        constant = math.lgamma(half) - math.lgamma(FREEDOM / 2)
        constant -= dim / 2 * math.log(FREEDOM * math.pi)
        gaps = (z - self.centres[:, None]).permute(0, 2, 3, 1)  # (C + 1, N, K, draws)
        squares = (self.roots @ gaps).square().sum(-2).mT  # (C + 1, draws, N)
        volumes = torch.diagonal(self.roots, dim1=-2, dim2=-1).log().sum(-1)
        weight = (self.log_shares + volumes)[:, None]
        return constant + weight - half * torch.log1p(squares / FREEDOM), squares


def proposal_about(centres: Tensor, roots: Tensor, log_shares: Tensor) -> Proposal:
    """Return a proposal about modes (C, N, K), with the prior's component added."""
    wide = torch.eye(roots.shape[-1], dtype=roots.dtype, device=roots.device)
    return Proposal(
        torch.cat([centres, torch.zeros_like(centres[:1])]),
        torch.cat([roots, wide.expand_as(roots[:1])]),
        torch.cat(
            [
                log_shares + math.log1p(-PRIOR_SHARE),
                torch.full_like(log_shares[:1], math.log(PRIOR_SHARE)),
            ]
        ),
    )


class Quadratic(NamedTuple):
    """Second-order expansion of log p(x_R, z) of N observations."""

    value: Tensor  # (N,)
    gradient: Tensor  # (N, K)
    curvature: Tensor  # (N, K, K): I + Jᵀ W J, with the likelihood's Fisher information W

    def step(self, damping: Tensor) -> Tensor:
        """Return the step to the maximum, (N, K), with damping (N,)."""
        diagonal = torch.diagonal(self.curvature, dim1=-2, dim2=-1)
        damped = self.curvature + torch.diag_embed(damping[:, None] * diagonal)
        factor = _factor(damped)
        return torch.cholesky_solve(self.gradient[..., None], factor)[..., 0]

    def gain(self) -> Tensor:
        """Return the gain of the undamped step in nats, to second order: (N,)."""
        return (self.gradient * self.step(torch.zeros_like(self.value))).sum(-1) / 2

    def of(self, rows: Tensor) -> "Quadratic":
        """Return the expansions of some observations."""
        return Quadratic(*(part[rows] for part in self))

    def put(self, rows: Tensor, others: "Quadratic") -> None:
        """Replace the expansions of some observations."""
        for part, other in zip(self, others, strict=True):
            part[rows] = other


class Modes(NamedTuple):
    """Ends of C climbs for each of N observations. Several may have ended at the same mode."""

    positions: Tensor  # (C, N, K)
    roots: Tensor  # (C, N, K, K), as those of a proposal
    log_mass: Tensor  # (C, N): of the posterior, in Laplace's approximation, not normalised

    def of(self, rows: Tensor) -> "Modes":
        """Return the modes of some observations."""
        return Modes(*(part[:, rows] for part in self))

    def joined(self, others: "Modes") -> "Modes":
        """Return the modes of both sets of climbs for the same observations."""
        return Modes(*(torch.cat(parts) for parts in zip(self, others, strict=True)))

    def heaviest(self) -> Tensor:
        """Return the mode with the most mass, (N, K)."""
        rows = torch.arange(self.log_mass.shape[1], device=self.log_mass.device)
        return self.positions[self.log_mass.argmax(0), rows]

    def unseen_mass(self) -> Tensor:
        """Return an estimate of the share of the mass that the climbs may have missed, (N,): the
        share at modes that only one climb has found, as in Good and Turing's estimate (Good
        1953)."""
        return (self._distinct().softmax(0) * (self._same_mode().sum(0) == 1)).sum(0)

    def proposal(self) -> Proposal:
        """Return a proposal about the heaviest modes."""
        log_mass, best = self._distinct().topk(min(MAX_MODES, len(self.positions)), dim=0)
        share = (1 - EVEN_SHARE) * log_mass.softmax(0)
        is_mode = log_mass > -math.inf
        share = share + EVEN_SHARE * is_mode / is_mode.sum(0)
        rows = torch.arange(best.shape[1], device=best.device)
        return proposal_about(self.positions[best, rows], self.roots[best, rows], share.log())

    def _distinct(self) -> Tensor:
        """Return the log mass (C, N), with −∞ for all but the heaviest climb to each mode."""
        mass, order = self.log_mass, torch.arange(len(self.positions), device=self.positions.device)
        first = (order[:, None] < order)[..., None] & (mass[:, None] == mass)
        heavier = (mass[:, None] > mass) | first
        return mass.masked_fill((self._same_mode() & heavier).any(0), -math.inf)

    def _same_mode(self) -> Tensor:
        """Return which climbs have ended at the same mode, (C, C, N)."""
        gaps = (self.positions[:, None] - self.positions).permute(1, 2, 3, 0)  # (C, N, K, C)
        near = (self.roots @ gaps).square().sum(-2).permute(2, 0, 1) < SAME_WITHIN**2
        return near | near.transpose(0, 1)


@dataclass(frozen=True)
class Fit:
    """Fit proposals for the posterior of z to a decoder and to the observed part of x (N, D).
    `observed` (N, D) is 1 for observed dimensions, else 0."""

    decoder: Decoder
    likelihood: Likelihood
    x: Tensor
    observed: Tensor
    shared_mask: bool = False
    """True if all observations have the same dimensions observed."""

    def of(self, rows: Tensor) -> "Fit":
        """Return the fit for some observations."""
        return replace(self, x=self.x[rows], observed=self.observed[rows])

    def proposal(self, start: Tensor, steps: int) -> Proposal:
        """Fit a proposal about the mode that at most `steps` steps from a start (N, K) lead to."""
        modes = self.modes([start], steps)
        return proposal_about(modes.positions, modes.roots, torch.zeros_like(modes.log_mass))

    @torch.no_grad()
    def modes(self, starts: Sequence[Tensor], steps: int) -> "Modes":
        """Climb from each start (N, K) with at most `steps` steps."""
        count, z = len(starts), torch.cat(list(starts))
        x, observed = (tensor.repeat(count, 1) for tensor in (self.x, self.observed))
        repeated = replace(self, x=x, observed=observed)
        expansion = repeated._climb(z, steps)
        roots = _factor(expansion.curvature).mT
        log_mass = expansion.value - torch.diagonal(roots, dim1=-2, dim2=-1).log().sum(-1)
        shape = count, *starts[0].shape
        return Modes(z.view(shape), roots.view(*shape, z.shape[-1]), log_mass.view(count, -1))

    @torch.no_grad()
    def best_start(self, starts: Sequence[Tensor]) -> Tensor:
        """Return the start of each observation with the highest density, (N, K)."""
        positions = torch.stack(list(starts))  # (starts, N, K)
        log_probs = self.likelihood.log_prob(self.x, self.decoder(positions))
        joint = (log_probs * self.observed).sum(-1) + log_prior(positions)
        return positions[joint.argmax(0), torch.arange(len(self.x), device=self.x.device)]

    def _climb(self, z: Tensor, steps: int) -> Quadratic:
        """Improve z (n, K) in place and return the expansion there. Converged observations are not
        changed further, so that the fit of an observation does not depend on the others."""
        expansion = self._quadratic(z, self.x, self.observed)
        damping = torch.zeros_like(expansion.value)
        active = torch.arange(len(z), device=z.device)
        for _ in range(steps):
            active = active[expansion.of(active).gain() > CONVERGED]
            if len(active) == 0:
                break
            trial = z[active] + expansion.of(active).step(damping[active])
            after = self._quadratic(trial, self.x[active], self.observed[active])
            better = after.value > expansion.value[active]
            expansion.put(active[better], after.of(better))
            z[active[better]] = trial[better]
            raised = (RAISED * damping[active]).clamp(min=MIN_RAISED)
            damping[active] = torch.where(better, EASED * damping[active], raised)
        return expansion

    def _quadratic(self, z: Tensor, x: Tensor, observed: Tensor) -> Quadratic:
        return Quadratic(*rowwise_on_oom(self._expanded, z, x, observed))

    @cached_property
    def _information(self) -> Tensor | None:
        """Return the information about the values before a linear last layer, Wᵀ Ψ_R⁻¹ W (H, H), if
        it is the same for all observations and the layer has more outputs than inputs. Gaussian
        noise does not depend on the outputs."""
        last = self.decoder.last
        if not isinstance(self.likelihood, GaussianLikelihood) or not isinstance(last, nn.Linear):
            return None
        if not self.shared_mask or last.in_features >= last.out_features:
            return None
        return self.likelihood.precision * (last.weight.mT * self.observed[0]) @ last.weight

    def _expanded(self, z: Tensor, x: Tensor, observed: Tensor) -> Quadratic:
        shared = self._information
        if shared is None:
            outputs, jacobian = linearised(self.decoder, z)
        else:
            values, jacobian = linearised_body(self.decoder, z)
            outputs = self.decoder.last(values)
        log_probs = self.likelihood.log_prob(x, outputs)
        value = (log_probs * observed).sum(-1) + log_prior(z)
        slope = self.likelihood.slope(x, outputs) * observed  # (n, D)
        if shared is None:
            information = self.likelihood.information(outputs) * observed
            weighted = jacobian * information[:, None]
        else:
            assert isinstance(self.decoder.last, nn.Linear)
            slope, weighted = slope @ self.decoder.last.weight, jacobian @ shared
        identity = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        gradient = (jacobian @ slope[..., None])[..., 0] - z
        return Quadratic(value, gradient, identity + weighted @ jacobian.mT)


@torch.no_grad()
def prior_starts(fit: Fit, latent_dim: int, count: int, generator: torch.Generator) -> Tensor:
    """Return starts, (count, N, K). The first is the likeliest of some draws from the prior. For
    each further start, new draws are made, and of the LIKELIEST of them the one farthest from the
    earlier starts is chosen. So two modes are both found if each has some of the likeliest
    draws."""
    starts: list[Tensor] = []
    draws = draw_normal((count, PRIOR_DRAWS, latent_dim), fit.x, generator)
    draws[1::2] *= TAIL_FACTOR
    for z in draws:
        log_probs = fit.likelihood.node_log_probs(fit.x, fit.decoder(z), fit.observed)  # (N, G)
        likeliest = z[log_probs.topk(LIKELIEST, -1).indices]  # (N, LIKELIEST, K)
        if not starts:
            starts.append(likeliest[:, 0])
            continue
        gaps = torch.stack([(likeliest - start[:, None]).norm(dim=-1) for start in starts]).amin(0)
        starts.append(likeliest[torch.arange(len(gaps), device=gaps.device), gaps.argmax(-1)])
    return torch.stack(starts) if starts else fit.x.new_zeros(0, len(fit.x), latent_dim)


@torch.no_grad()
def poorly_predicted(fit: Fit, mask: Tensor, z: Tensor) -> Tensor:
    """Return which observations (N,) have a masked value that is far less likely given z (N, K)
    than the mean there. `mask` is (D,)."""
    outputs = fit.decoder(z)
    expected = fit.likelihood.log_prob(fit.likelihood.mean(outputs), outputs)
    gaps = expected - fit.likelihood.log_prob(fit.x, outputs)
    return (mask & (gaps > MAX_LOG_PROB_GAP)).any(-1)


def _truncated(log_weights: Tensor) -> Tensor:
    """Truncate weights at √draws times their mean (Ionides 2008), so that no single draw determines
    a refitted proposal."""
    draws = math.log(len(log_weights))
    return torch.minimum(log_weights, log_weights.logsumexp(0) - draws / 2)


def _factor(curvature: Tensor) -> Tensor:
    """Return the Cholesky factor, or that of the diagonal if rounding makes the matrix
    indefinite."""
    factor, failed = torch.linalg.cholesky_ex(curvature)
    diagonal = torch.diagonal(curvature, dim1=-2, dim2=-1).sqrt()
    return torch.where(failed[..., None, None] == 0, factor, torch.diag_embed(diagonal))

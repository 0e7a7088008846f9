"""Linear VAEs with integrals over a grid that replaces the prior N(0, I): the nodes, the VAE, and
the check of its results against other grids. All results are exact for the grid.

On any grid the scores of all sizes sum to the LML of that grid (Eq. 5), so their agreement proves
nothing. The width of the posterior depends on the number of observed dimensions, so each size needs
its own check."""

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from mptcore.estimation.model import Evidence, Model
from mptcore.families.vae.importance import Sampler, WeightSummary, weight_evidence
from mptcore.families.vae.likelihoods import Likelihood
from mptcore.families.vae.networks import Decoder, Encoder
from mptcore.families.vae.proposal import Fit
from mptcore.families.vae.vae import Vae
from mptcore.runtime.out_of_memory import rowwise_on_oom
from mptcore.runtime.state import Records
from mptcore.specs import GaussHermite, UniformGrid
from mptcore.specs.families.vae.models import AnyGrid

CHUNK_BYTES = 2**28
"""Memory for observations × nodes, and for nodes × dimensions."""
CONVERGED_WITHIN = 0.05
"""Maximum change of a converged result in nats when the number of nodes is doubled."""
STEPS = 50
"""Maximum number of Gauss–Newton steps to the mode of a posterior."""
MAX_CHECKED_OBSERVATIONS = 256
"""Maximum number of observations of a check, evenly spaced in the data."""
MIN_CHECKED_MASKS, CHECKED_MASKS_TIMES_DIM = 2, 64
"""Minimum number of masks of a size that are checked, and their number times D for small
D."""
SAFETY_FACTOR = 1e8
"""Multiple of the smallest number from which a sum of shares has all its digits."""
MAX_CHECKED_EACH = 16
"""Maximum number of observed dimensions at which each size is checked. Beyond it the sizes are
checked at steps of √2 in the number of observed dimensions."""


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
            points, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(spec.nodes))
            logs = weights.log()
        case UniformGrid():
            points = torch.linspace(-spec.extent, spec.extent, spec.nodes, dtype=torch.float64)
            logs = -points.square() / 2
        case _:
            assert_never(spec)
    z = torch.cartesian_prod(*[points] * latent_dim).view(-1, latent_dim)
    total = torch.cartesian_prod(*[logs] * latent_dim).view(-1, latent_dim).sum(-1)
    return Nodes(z, total - total.logsumexp(0))


class GridVae(Vae):
    """p(x) = Σ_g weight_g p(x | z_g). The encoder is used only for the ELBO."""

    def __init__(
        self,
        encoder: Encoder | None,
        decoder: Decoder,
        likelihood: Likelihood,
        latent_dim: int,
        grid: AnyGrid,
    ):
        super().__init__(encoder, decoder, likelihood, latent_dim)
        self.grid = grid
        nodes = nodes_of(grid, latent_dim)
        self.register_buffer("z", nodes.z, persistent=False)  # (G, K)
        self.register_buffer("log_weights", nodes.log_weights, persistent=False)  # (G,)
        self.z: Tensor
        self.log_weights: Tensor

    def score(self, x: Tensor, masks: Tensor, generator: torch.Generator | None = None) -> Tensor:
        outputs = self.decoder(self.z)  # (G, D)
        return torch.stack([self.conditional(x, outputs, mask).mean() for mask in masks]).mean()

    def conditional(self, x: Tensor, outputs: Tensor, mask: Tensor) -> Tensor:
        """Return log p(x_j | x_R) for each masked j of one mask (D,), (N, M), from the decoder's
        outputs at all nodes (G, D)."""
        joint = self.joint(x, outputs, (~mask).to(x))
        share = joint.log_softmax(-1)  # log p(z_g | x_R), (N, G)
        columns = mask.nonzero().flatten()  # once: a GPU is waited for here
        return self.likelihood.mixed_log_probs(x[:, columns], outputs[:, columns], share)

    def joint(self, x: Tensor, outputs: Tensor, observed: Tensor | None) -> Tensor:  # (N, G)
        """Return log p(x_R, z_g) for the observed dimensions, given as (D,) or (N, D), or for
        all."""
        return self.likelihood.node_log_probs(x, outputs, observed) + self.log_weights

    def log_marginal(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """Return log p(x_R) of each observation (N,), for the observed dimensions (D,) or for
        all."""
        return self.joint(x, self.decoder(self.z), observed).logsumexp(-1)

    def fit_encoder(self, x: Tensor, generator: torch.Generator) -> None:
        """Leave no gradient: the grid does not use the encoder."""

    def evidence(self, x: Tensor, generator: torch.Generator | None = None) -> Records[Evidence]:
        """Return the LML over the grid. It is unconverged if another grid gives another value."""
        yield None
        return grid_evidence(self, x)

    def quick_lml(self, x: Tensor, samples: int, generator: torch.Generator) -> Evidence:
        """Return the LML by importance sampling, which costs less than a grid fine enough and its
        check. log p(x | z) is concave in z, so each posterior has one mode."""
        parts = self.parts(x, samples)
        summaries = [self._summary(part, samples, generator) for part in parts]
        evidence = weight_evidence(summaries, advice="raise train.lml_samples")
        rounding = torch.finfo(x.dtype).eps * abs(evidence.value)
        return replace(evidence, std_err=math.hypot(evidence.std_err, rounding))

    @torch.no_grad()
    def _summary(self, x: Tensor, samples: int, generator: torch.Generator) -> WeightSummary:
        fit = Fit(self.decoder, self.likelihood, x, torch.ones_like(x), shared_mask=True)
        proposal = fit.proposal(x.new_zeros(len(x), self.latent_dim), STEPS)
        return Sampler(fit, self.rows(1), generator).summary(proposal, samples)

    @torch.no_grad()
    def reconstruction(self, x: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        outputs = self.decoder(self.z)
        share = self.joint(x, outputs, (~mask).to(x)).softmax(-1)  # (N, G)
        return torch.where(mask, share @ self.likelihood.mean(outputs), x)

    def scored_on(self, x: Tensor, seed: int, evidence: Evidence) -> Model:
        return GridVaeModel(self, x, evidence)


class GridVaeModel(Model):
    """A grid VAE together with the data it scores."""

    is_tractable = True

    def __init__(self, vae: GridVae, x: Tensor, evidence: Evidence):
        self.vae, self.x = vae, x
        self._evidence = evidence
        self.device = x.device
        self._shifts: dict[int, float] = {}

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def bytes_per_mask(self) -> int:
        """Memory per mask. A CPU scores masks one by one; a batch is computed between two safe
        points."""
        return 2**22

    @property
    def efficient_batch(self) -> int:
        """Number of masks that a GPU computes in about the time of one."""
        if self.device.type == "cpu":
            return 1
        numbers = len(self.x) * max(len(self.vae.z), self.dim)
        return max(1, CHUNK_BYTES // (8 * numbers * self.x.element_size()))

    @torch.no_grad()
    def scores(self, masks: Tensor) -> Tensor:
        outputs = self.vae.decoder(self.vae.z)
        if self.efficient_batch == 1:
            return torch.stack([self._over_observations(outputs, mask) for mask in masks])
        parts = torch.split(masks, self.efficient_batch)
        return torch.cat([self._together(outputs, part) for part in parts])

    def _together(self, outputs: Tensor, masks: Tensor) -> Tensor:
        """Score masks (B, D) of any sizes together. Observed dimensions are computed too and
        discarded."""
        x = self.x.repeat(len(masks), 1)
        hidden = masks[:, None].expand(-1, len(self.x), -1)  # (B, N, D)
        share = self.vae.joint(x, outputs, (~hidden).to(x).flatten(0, 1)).log_softmax(-1)
        log_probs = self.vae.likelihood.mixed_log_probs(x, outputs, share).view(hidden.shape)
        sums = torch.where(hidden, log_probs, 0).sum((1, 2), dtype=torch.float64)
        return sums / (len(self.x) * masks.sum(1))

    def _over_observations(self, outputs: Tensor, mask: Tensor) -> Tensor:
        rows = max(1, CHUNK_BYTES // (4 * len(outputs) * self.x.element_size()))
        sums = [
            self.vae.conditional(x, outputs, mask).sum(dtype=torch.float64)
            for x in torch.split(self.x, rows)
        ]
        return torch.stack(sums).sum() / (len(self.x) * mask.sum())

    def evidence(self) -> Evidence:
        return self._evidence

    def grid_shift(self, size: int) -> float:
        vae = self.vae
        sizes = checked_sizes(size, self.dim)
        for checked in sizes:
            if checked not in self._shifts:
                model = vae.grid, vae.decoder, vae.likelihood
                self._shifts[checked] = score_shift(*model, self.x, checked, vae.latent_dim)
        shifts = [self._shifts[checked] for checked in sizes]
        return math.nan if any(map(math.isnan, shifts)) else max(shifts)

    def joint_scores(self, masks: Tensor) -> Tensor:
        observed = [_by_observation(self.vae, self.x, (~mask).to(self.x)).mean() for mask in masks]
        return mean_log_marginal(self.vae, self.x) - torch.stack(observed)


def grid_evidence(vae: GridVae, x: Tensor) -> Evidence:
    """Return the LML over the model's grid. It is unconverged if a wider grid with twice the nodes,
    or a grid of another kind, gives another value."""
    log_probs = _by_observation(vae, x, None)
    value = log_probs.mean().item()
    grids = {
        f"twice the {vae.grid.nodes} nodes": vae.grid.doubled(),
        "a grid of another kind": vae.grid.of_another_kind(),
    }
    shifts = {}
    for name, grid in grids.items():
        other = GridVae(None, vae.decoder, vae.likelihood, vae.latent_dim, grid).to(x)
        shifts[name] = mean_log_marginal(other, x) - value
    name, shift = max(shifts.items(), key=lambda item: abs(item[1]))
    reason = None
    if not all(abs(each) <= CONVERGED_WITHIN for each in shifts.values()):
        reason = (
            f"not final: {name} would move it by {shift:.3g} nats, more than {CONVERGED_WITHIN}; "
            f"raise evaluate.lml.nodes{' and extent' if isinstance(vae.grid, UniformGrid) else ''}"
        )
    return Evidence(value, 0.0, reason, {"quadrature_shift": shift}, log_probs)


def mean_log_marginal(vae: GridVae, x: Tensor) -> float:
    """Return the mean over observations of log p(x)."""
    return _by_observation(vae, x, None).mean().item()


@torch.no_grad()
def _by_observation(vae: GridVae, x: Tensor, observed: Tensor | None) -> Tensor:
    """Return log p(x_R) of each observation (N,) for observed dimensions (D,) or all, in
    float64."""
    (log_probs,) = rowwise_on_oom(lambda rows: (_log_marginals(vae, rows, observed),), x)
    return log_probs.double()


def _log_marginals(vae: GridVae, x: Tensor, observed: Tensor | None) -> Tensor:
    """Return log p(x_R) of each observation (N,). The nodes are processed in parts, whose outputs
    are computed once."""
    size = max(1, CHUNK_BYTES // (4 * max(x.shape) * x.element_size()))
    total = torch.full_like(x[:, 0], -torch.inf)
    nodes = zip(torch.split(vae.z, size), torch.split(vae.log_weights, size), strict=True)
    for z, log_weights in nodes:
        joint = vae.likelihood.node_log_probs(x, vae.decoder(z), observed) + log_weights
        total = torch.logaddexp(total, joint.logsumexp(-1))
    return total


def checked_sizes(size: int, dim: int) -> list[int]:
    """Return the sizes whose check covers `size`: itself, or those checked next to it."""
    observed = dim - size
    if observed <= MAX_CHECKED_EACH:
        return [size]
    lower = 2 ** (math.floor(2 * math.log2(observed)) / 2)
    return [dim - int(lower), dim - min(dim - 1, math.ceil(math.sqrt(2) * lower))]


@torch.no_grad()
def score_shift(
    grid: AnyGrid, decoder: Decoder, likelihood: Likelihood, x: Tensor, size: int, latent_dim: int
) -> float:
    """Return how far other grids move the score of a mask of this size, in nats: the mean of the
    absolute shift over a few masks, for the grid that moves it most. Of many observations some are
    used: the check would otherwise cost several times as much as the scores."""
    x = x[torch.linspace(0, len(x) - 1, min(len(x), MAX_CHECKED_OBSERVATIONS)).round().long()]
    masks = _checked_masks(size, x.shape[1]).to(x.device)

    def scores(grid: AnyGrid) -> Tensor:
        nodes = nodes_of(grid, latent_dim)
        on_device = Nodes(nodes.z.to(x), nodes.log_weights.to(x))
        return scores_over(on_device, decoder, likelihood, x, masks)

    grid_scores, others = scores(grid), (grid.doubled(), grid.of_another_kind())
    shifts = [(scores(other) - grid_scores).abs().mean() for other in others]
    return torch.stack(shifts).max().item()


def scores_over(
    nodes: Nodes, decoder: Decoder, likelihood: Likelihood, x: Tensor, masks: Tensor
) -> Tensor:
    """Return the score of each mask (B, D) over the given nodes: float64, (B,). The nodes are
    processed in parts."""
    scores = []
    for mask in masks:
        (log_probs,) = rowwise_on_oom(
            lambda rows, mask=mask: (_conditionals(nodes, decoder, likelihood, rows, mask),), x
        )
        scores.append(log_probs.double().mean())
    return torch.stack(scores)


def _conditionals(
    nodes: Nodes, decoder: Decoder, likelihood: Likelihood, x: Tensor, mask: Tensor
) -> Tensor:
    """Return log p(x_j | x_R) for each masked j, (N, M). A part of the nodes is left out for
    observations whose posterior has no share there. So log p(x_j | z), which may be far below the
    smallest number there, is seldom needed."""
    columns, observed = mask.nonzero().flatten(), (~mask).to(x)
    at_once = max(1, CHUNK_BYTES // (4 * max(x.shape) * x.element_size()))
    parts = [
        *zip(torch.split(nodes.z, at_once), torch.split(nodes.log_weights, at_once), strict=True)
    ]

    def joint(z: Tensor, log_weights: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of some nodes, (G, D), and log p(x_R, z_g), (N, G)."""
        outputs = decoder(z)
        return outputs, likelihood.node_log_probs(x, outputs, observed) + log_weights

    of_parts = torch.stack([joint(*part, x)[1].logsumexp(-1) for part in parts])  # (parts, N)
    log_observed = of_parts.logsumexp(0)  # log p(x_R)
    tiny = torch.finfo(x.dtype).tiny
    mixed = torch.zeros_like(x[:, columns])
    for part, of_part in zip(parts, of_parts, strict=True):
        rows = (of_part - log_observed > math.log(tiny)).nonzero().flatten()
        if len(rows) == 0:
            continue
        outputs, log_joint = joint(*part, x[rows])
        share = (log_joint - log_observed[rows, None]).exp()
        mixed[rows] += likelihood.mixed_probs(x[rows][:, columns], outputs[:, columns], share)
    log_probs = mixed.log()
    for row in (mixed < tiny * SAFETY_FACTOR).any(1).nonzero().flatten().tolist():
        x_row = x[row : row + 1]
        logs = []
        for part in parts:
            outputs, log_joint = joint(*part, x_row)
            x_masked, masked_outputs = x_row[:, columns], outputs[:, columns]
            logs.append(likelihood.mixed_log_probs(x_masked, masked_outputs, log_joint))
        log_probs[row] = torch.stack(logs).logsumexp(0)[0] - log_observed[row]
    return log_probs


def _checked_masks(size: int, dim: int) -> Tensor:
    """Return all masks of a size if there are few, else a fixed random choice: (B, D)."""
    count = max(MIN_CHECKED_MASKS, CHECKED_MASKS_TIMES_DIM // dim)
    if math.comb(dim, size) <= count:
        masked = torch.tensor(list(combinations(range(dim), size)))
        return torch.zeros(len(masked), dim, dtype=torch.bool).scatter(1, masked, True)
    order = torch.rand(count, dim, generator=torch.Generator().manual_seed(size))
    return order.argsort(-1).argsort(-1) < size

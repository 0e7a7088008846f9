"""The linear VAE whose integrals are taken over a grid: everything is exact for that grid."""

import torch
from torch import Tensor, nn

from mptcore.estimation.model import Evidence, TractableModel
from mptcore.families.vae.grid import Nodes
from mptcore.families.vae.likelihoods import Outputs
from mptcore.families.vae.networks import Decoder, Encoder
from mptcore.families.vae.variational import elbo

CHUNK_BYTES = 2**28
"""Memory for observations times nodes, and nodes times dimensions."""


class GridVae(nn.Module):
    """p(x) = Σ_g weight_g p(x | z_g); the encoder is there for the ELBO alone."""

    def __init__(self, decoder: Decoder, encoder: Encoder | None, outputs: Outputs, nodes: Nodes):
        super().__init__()
        self.decoder, self.encoder = decoder, encoder
        self.outputs = outputs
        self.register_buffer("z", nodes.z, persistent=False)
        self.register_buffer("log_weights", nodes.log_weights, persistent=False)
        self.z: Tensor
        self.log_weights: Tensor

    def score(self, x: Tensor, masked: Tensor) -> Tensor:
        """The mean over observations (N, D), masked j and masks (B, D) of log p(x_j | x_R), in
        nats: Eq. (5) of the paper."""
        outputs = self.decoder(self.z)  # (G, D)
        return torch.stack([self.conditional(x, outputs, mask).mean() for mask in masked]).mean()

    def conditional(self, x: Tensor, outputs: Tensor, masked: Tensor) -> Tensor:
        """log p(x_j | x_R) for each masked j, (N, M), given the outputs at all nodes (G, D)."""
        joint = self._joint(x, outputs, (~masked).to(x))
        share = joint.log_softmax(-1)  # log p(z_g | x_R)
        return self.outputs.mixed_log_probs(x[:, masked], outputs[:, masked], share)

    def _joint(self, x: Tensor, outputs: Tensor, observed: Tensor | None) -> Tensor:  # (N, G)
        return self.outputs.node_log_probs(x, outputs, observed) + self.log_weights

    def log_marginal(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log p(x_R) for each observation, of the observed dimensions (D,) or all: (N,)."""
        return self._joint(x, self.decoder(self.z), observed).logsumexp(-1)

    def elbo(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The evidence lower bound of each observation from one draw, (N,)."""
        assert self.encoder is not None
        return elbo(self.encoder, self.decoder, self.outputs, x, generator)

    @torch.no_grad()
    def reconstruction(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """E[x_M | x_R] in the masked dimensions, x in the others: (N, D)."""
        outputs = self.decoder(self.z)
        share = self._joint(x, outputs, (~masked).to(x)).softmax(-1)
        return torch.where(masked, share @ self.outputs.mean(outputs), x)


class GridScored(TractableModel):
    """A grid VAE together with the data it is scored on."""

    def __init__(self, model: GridVae, x: Tensor, evidence: Evidence):
        self.model, self.x = model, x
        self._evidence = evidence
        self.device = x.device

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def bytes_per_mask(self) -> int:
        """Masks are scored one at a time; a batch is what a run does between two rests."""
        return 2**22

    def scores(self, masked: Tensor) -> Tensor:
        with torch.no_grad():
            outputs = self.model.decoder(self.model.z)
        return torch.stack([self._over_observations(outputs, mask) for mask in masked])

    def _over_observations(self, outputs: Tensor, mask: Tensor) -> Tensor:
        rows = max(1, CHUNK_BYTES // (4 * len(outputs) * self.x.element_size()))
        found = [
            self.model.conditional(x, outputs, mask).sum(dtype=torch.float64)
            for x in torch.split(self.x, rows)
        ]
        return torch.stack(found).sum() / (len(self.x) * mask.sum())

    def log_marginal_likelihood(self) -> float:
        return mean_log_marginal(self.model, self.x)

    def evidence(self) -> Evidence:
        return self._evidence

    def joint_scores(self, masked: Tensor) -> Tensor:
        whole = self.log_marginal_likelihood()
        rest = [mean_log_marginal(self.model, self.x, (~mask).to(self.x)) for mask in masked]
        return whole - torch.tensor(rest, dtype=torch.float64, device=self.device)


@torch.no_grad()
def mean_log_marginal(model: GridVae, x: Tensor, observed: Tensor | None = None) -> float:
    """The mean over observations of log p(x_R), for observed dimensions (D,) or all. It goes
    through the nodes in parts, whose outputs are computed once."""
    size = max(1, CHUNK_BYTES // (4 * max(x.shape) * x.element_size()))
    total = torch.full_like(x[:, 0], -torch.inf)
    nodes = zip(torch.split(model.z, size), torch.split(model.log_weights, size), strict=True)
    for z, log_weights in nodes:
        joint = model.outputs.node_log_probs(x, model.decoder(z), observed) + log_weights
        total = torch.logaddexp(total, joint.logsumexp(-1))
    return total.double().mean().item()

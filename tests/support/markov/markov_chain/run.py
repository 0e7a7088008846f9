"""The model and the run: dimensions at a distance d are equal with probability (1 + λ^d) / 2."""

from dataclasses import dataclass

import torch
from torch import Tensor

from markov_chain.spec import MarkovExperiment
from mptcore.data.dataset import load_arrays, refuse_missing
from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import Evidence, Model
from mptcore.runtime.state import Records, RunState, TrainingState


class MarkovChain(Model):
    """The chain and observations x (N, D) of 0 and 1."""

    is_tractable = True

    def __init__(self, stay: float, x: Tensor):
        self.decay = 2 * stay - 1  # λ
        self.signs = 2 * x.double() - 1  # (N, D), −1 and 1
        self.device = x.device

    @property
    def dim(self) -> int:
        return self.signs.shape[1]

    @property
    def bytes_per_mask(self) -> int:
        return 24 * self.dim * self.signs.numel()

    def scores(self, masks: Tensor) -> Tensor:  # (B, D) -> (B,)
        one_more = ~masks[:, None] | torch.eye(self.dim, dtype=torch.bool, device=self.device)
        joint = self.log_prob(one_more.flatten(0, 1)).view(masks.shape)  # log p(x_j, x_R)
        return ((joint - self.log_prob(~masks)[:, None]) * masks).sum(1) / masks.sum(1)

    def evidence(self) -> Evidence:
        return Evidence(self.log_prob(self.signs.new_ones(1, self.dim, dtype=torch.bool)).item())

    def joint_scores(self, masks: Tensor) -> Tensor:
        return self.evidence().value - self.log_prob(~masks)

    def log_prob(self, observed: Tensor) -> Tensor:  # (B, D) -> (B,)
        """Return the mean of log p(x_R) over observations: a chain over the observed dimensions."""
        places = torch.arange(self.dim, device=self.device)
        before = torch.where(observed, places, -1).cummax(1).values.roll(1, 1)  # observed, or −1
        before[:, 0] = -1
        reach = torch.where(before < 0, 0.0, self.decay ** (places - before).double())
        alike = self.signs * self.signs[:, before.clamp(min=0)].transpose(0, 1)  # (B, N, D)
        return (((1 + reach[:, None] * alike) / 2).log() * observed[:, None]).sum(2).mean(1)


@dataclass
class MarkovRun:
    spec: MarkovExperiment
    state: RunState
    device: torch.device
    dtype: torch.dtype

    def records(self, resumed: TrainingState | None) -> Records[None]:
        self.state.at_safe_point = True
        for seed in self.spec.seeds:
            generator = torch.Generator().manual_seed(seed)
            dataset = load_arrays(self.spec.data, seed, generator)
            refuse_missing(dataset, self.spec.missing_refusal)
            yield from self.evaluation(dataset.x, seed).records(generator)
            if dataset.heldout is not None:
                yield from self.evaluation(dataset.heldout, seed).heldout_records(generator)

    def evaluation(self, x: Tensor, seed: int) -> Evaluation:  # (N, D)
        models = {"model": MarkovChain(self.spec.model.stay, x.to(self.device))}
        state, memory = self.state, self.spec.compute.memory_bytes
        return Evaluation(self.spec.evaluate, models, {"seed": seed}, state, memory)

"""A toy family: a binary Markov chain over the dimensions.

Each dimension repeats the one before with probability `stay`. So two dimensions at a distance d are
equal with probability (1 + λ^d) / 2, λ = 2 stay − 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.data.dataset import load_arrays, refuse_missing
from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import TractableModel
from mptcore.runtime.state import RunState, TrainingState, Work
from tests.support.markov.spec import MarkovExperiment


class MarkovChain(TractableModel):
    """The chain and observations x (N, D) of 0 and 1."""

    def __init__(self, stay: float, x: Tensor):
        self.decay = 2 * stay - 1  # λ
        self.signs = 2 * x.double() - 1  # (N, D), −1 and 1
        self.device = x.device

    @property
    def dim(self) -> int:
        return self.signs.shape[1]

    @property
    def bytes_per_mask(self) -> int:
        return 8 * self.signs.numel()

    def scores(self, masks: Tensor) -> Tensor:
        return torch.stack([self._conditional(mask).mean() for mask in masks])

    def log_marginal_likelihood(self) -> float:
        return self._log_marginal(self.signs.new_ones(self.dim, dtype=torch.bool)).item()

    def joint_scores(self, masks: Tensor) -> Tensor:
        rest = torch.stack([self._log_marginal(~mask) for mask in masks])
        return self.log_marginal_likelihood() - rest

    def _conditional(self, mask: Tensor) -> Tensor:
        """Return log p(x_j | x_R) for each masked j, (N, M), by its nearest observed neighbours."""
        observed, masked = (~mask).nonzero().flatten(), mask.nonzero().flatten()
        after = torch.searchsorted(observed, masked)
        pull = [self.signs.new_zeros(1).expand(len(self.signs), len(masked))] * 2
        for side, index in enumerate((after - 1, after)):
            there = (index >= 0) & (index < len(observed))
            place = observed[index.clamp(0, max(0, len(observed) - 1))] if len(observed) else masked
            reach = torch.where(there, self.decay ** (place - masked).abs().double(), 0.0)
            pull[side] = reach * self.signs[:, place] * self.signs[:, masked]  # λ^d x x_j
        alike = (1 + pull[0]) * (1 + pull[1])
        return (alike / (alike + (1 - pull[0]) * (1 - pull[1]))).log()

    def _log_marginal(self, observed: Tensor) -> Tensor:
        """Return the mean of log p(x_R) over observations."""
        places = observed.nonzero().flatten()
        if len(places) == 0:
            return self.signs.new_zeros(())
        signs = self.signs[:, places]
        steps = self.decay ** places.diff().double() * signs[:, 1:] * signs[:, :-1]
        return ((1 + steps) / 2).log().sum(1).mean() - torch.tensor(2.0).double().log()


@dataclass
class MarkovRun:
    """Run of an experiment with a Markov chain."""

    spec: MarkovExperiment
    state: RunState
    device: torch.device

    def records(self, resumed: TrainingState | None) -> Work[None]:
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
        cache, memory = self.state.scores, self.spec.compute.memory_bytes
        return Evaluation(self.spec.evaluate, models, {"seed": seed}, cache, memory)

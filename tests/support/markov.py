"""A toy fourth family, as a newcomer would add one: a binary Markov chain over the dimensions.

Each dimension repeats the one before with probability `stay`, so that d steps apart two of them are
alike with probability (1 + λ^d) / 2, λ = 2 stay − 1. `python -m tests.support.markov` is the filter
with this family: its two registrations are UNION and `implementation`.
"""

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from mptcore import run
from mptcore.__main__ import main
from mptcore.data.arrays import load_arrays
from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import TractableModel
from mptcore.runtime.session import ExperimentRun, Session, TrainingState, Work
from mptcore.specs import (
    ByFamily,
    Compute,
    DataSource,
    LatentExperiment,
    Limits,
    MaskEvaluation,
    Problem,
    Spec,
    TextExperiment,
    VectorExperiment,
)


class MarkovModel(Spec):
    family: Literal["markov"]
    stay: Annotated[float, Field(gt=0, lt=1)]


class MarkovExperiment(Spec):
    model: MarkovModel
    data: DataSource
    evaluate: MaskEvaluation = MaskEvaluation()
    seeds: tuple[int, ...] = Field((0,), strict=False)
    compute: Compute = Compute()

    def mask_count(self) -> int:
        return len(self.seeds) * self.evaluate.count(self.data.dim)

    def limit_problems(self, limits: Limits) -> list[Problem]:
        return []


class MarkovChain(TractableModel):
    """Together with observations x (N, D) of 0 and 1."""

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
        """log p(x_j | x_R) for each masked j, (N, M), by the nearest observed on both sides."""
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
        """The mean over observations of log p(x_R)."""
        places = observed.nonzero().flatten()
        if len(places) == 0:
            return self.signs.new_zeros(())
        signs = self.signs[:, places]
        steps = self.decay ** places.diff().double() * signs[:, 1:] * signs[:, :-1]
        return ((1 + steps) / 2).log().sum(1).mean() - torch.tensor(2.0).double().log()


@dataclass
class MarkovRun:
    spec: MarkovExperiment
    session: Session
    device: torch.device

    @property
    def total(self) -> int:
        return self.spec.mask_count()

    @property
    def evaluations(self) -> int:
        return len(self.spec.seeds)

    def records(self, resumed: TrainingState | None) -> Work[None]:
        self.session.at_safe_point = True
        for seed in self.spec.seeds:
            generator = torch.Generator().manual_seed(seed)
            x = load_arrays(self.spec.data, seed, generator).x.to(self.device)
            models = {"model": MarkovChain(self.spec.model.stay, x)}
            cache, memory = self.session.scores, self.spec.compute.memory_bytes
            evaluation = Evaluation(self.spec.evaluate, models, {"seed": seed}, cache, memory)
            yield from evaluation.records(generator)


UNION = Annotated[
    VectorExperiment | LatentExperiment | TextExperiment | MarkovExperiment, ByFamily()
]


def implementation(
    spec: Any, session: Session, device: torch.device, dtype: torch.dtype
) -> ExperimentRun:
    if isinstance(spec, MarkovExperiment):
        return MarkovRun(spec, session, device)
    return run.implementation(spec, session, device, dtype)


if __name__ == "__main__":
    sys.exit(main(UNION, implementation))

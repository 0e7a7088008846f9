"""Save and restore the tensors that training changes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.runtime.checkpoint import under
from mptcore.runtime.rng import restore_generator

OPTIMIZER = "optimizer/"
"""Prefix of the tensors that are not needed after training."""


@dataclass(frozen=True)
class Learned:
    """Parameters, the optimizer's moments, and generators, by name."""

    parameters: Mapping[str, Tensor]
    optimizer: torch.optim.Optimizer
    generators: Mapping[str, torch.Generator]

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors. The next step changes them, so a caller that keeps them copies
        them."""
        tensors = {f"parameter/{k}": p.detach() for k, p in self.parameters.items()}
        for i, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"{OPTIMIZER}{i}/{k}": value for k, value in moments.items()}
        return tensors | {f"generator/{k}": g.get_state() for k, g in self.generators.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors returned by `tensors`."""
        kept = under("parameter/", tensors)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(kept[name])
        for name, generator in self.generators.items():
            restore_generator(generator, tensors[f"generator/{name}"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in under(OPTIMIZER, tensors).items():
            index, _, moment = name.partition("/")
            moments.setdefault(int(index), {})[moment] = value
        if moments:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": moments, "param_groups": groups})

"""What every training on vectors shares: its masks, and Adam's state as tensors."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mptcore.protocol.records import Point, RunError
from mptcore.runtime.rng import stream
from mptcore.specs import Ramp, UniformSize
from mptcore.specs.train import Steps

ONE_STEP = "the masks of one step"


class StepMasks:
    """The masks of each training step, drawn for each seed from a stream of its own."""

    def __init__(self, spec: Steps, dim: int, seeds: Sequence[int]):
        self.spec, self.dim = spec, dim
        self._draws = [stream(seed, "train masks") for seed in seeds]

    def draw(self, fraction: float) -> Tensor:  # (S, B, D)
        """When this fraction of the training is done. Each mask covers the places of its smallest
        keys."""
        sizes = self._sizes(fraction)
        shape = (sizes.shape[1], self.dim)
        keys = torch.stack(
            [torch.rand(shape, generator=g, dtype=torch.float64) for g in self._draws]
        )
        ranked = torch.from_numpy(np.sort(keys.numpy(), -1))  # ten times as fast as torch's
        last = (sizes - 1).expand(len(keys), -1)[..., None]
        return keys <= ranked.gather(-1, last)

    def _sizes(self, fraction: float) -> Tensor:  # (S or 1, B)
        masks, dim = self.spec.masks, self.dim
        match masks:
            case UniformSize():
                drawn = [torch.randint(1, dim + 1, (1,), generator=draws) for draws in self._draws]
                sizes = torch.stack(drawn)
            case Ramp():
                sizes = torch.tensor([[masks.size_at(fraction, dim)]])
            case _:
                sizes = torch.tensor([list(masks.mask_sizes(dim))])
        return sizes.repeat_interleave(masks.per_size, dim=1)

    def state(self) -> dict[str, Tensor]:
        return {f"draws/{i}": draws.get_state() for i, draws in enumerate(self._draws)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for i, draws in enumerate(self._draws):
            draws.set_state(state[f"draws/{i}"].cpu())


def learned_state(adam: torch.optim.Adam, learned: Sequence[Tensor]) -> dict[str, Tensor]:
    """Parameters and Adam's moments of them, as copies."""
    tensors = {f"parameter/{i}": p.detach().clone() for i, p in enumerate(learned)}
    for i, parameter in enumerate(learned):
        for name, value in adam.state[parameter].items():
            tensors[f"adam/{i}/{name}"] = value.clone()
    return tensors


def restore_learned(
    adam: torch.optim.Adam, learned: Iterable[Tensor], state: Mapping[str, Tensor]
) -> None:
    with torch.no_grad():
        for i, parameter in enumerate(learned):
            parameter.copy_(state[f"parameter/{i}"])
            prefix = f"adam/{i}/"
            adam.state[parameter] = {  # a fused Adam counts its steps where the parameter is
                name.removeprefix(prefix): value.to(parameter.device)
                for name, value in state.items()
                if name.startswith(prefix)
            }


class DivergedError(RunError):
    """Training that reached a loss which is not finite; it carries that epoch's records."""

    def __init__(self, epoch: int, seeds: Sequence[int], points: Sequence[Point]):
        starts = ", ".join(map(str, dict.fromkeys(seeds)))
        cure = "lower train.learning_rate, or use precision float64"
        what = f"the loss of seed {starts} is not finite at epoch {epoch}"
        super().__init__("error", f"{what}: {cure}")
        self.points = points

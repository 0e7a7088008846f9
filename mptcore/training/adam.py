"""Adam, where nothing is compiled."""

from inspect import unwrap

import torch
from torch.optim import Optimizer


class Adam(torch.optim.Adam):
    """torch's. That one keeps its methods out of what torch.compile compiles, and imports torch's
    compiler for it at the first of them: two seconds before the first step of a run."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        unwrap(torch.optim.Adam.step)(self)

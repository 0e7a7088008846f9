"""Adam without torch's compiler."""

from inspect import unwrap

import torch
from torch.optim import Optimizer


class Adam(torch.optim.Adam):
    """torch.optim.Adam without the import of torch's compiler. The original wraps its methods to
    exclude them from torch.compile. At the first call that imports the compiler, which delays the
    first step of a run by two seconds."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        unwrap(torch.optim.Adam.step)(self)

    step.hooked = True  # type: ignore[attr-defined]
    """Torch wraps no step that has this mark, and the profiler's record costs as much as a small
    step."""

"""Adam without torch's compiler."""

from inspect import unwrap

import torch
from torch.optim import Optimizer

SMALL = 2**12
"""Maximum number of parameters for which a step uses one thread. The fused step always uses all
threads, and for few parameters waiting for the threads costs more than the step."""


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
        count = sum(p.numel() for group in self.param_groups for p in group["params"])
        threads = torch.get_num_threads()
        if count > SMALL or threads == 1:
            unwrap(torch.optim.Adam.step)(self)
            return
        torch.set_num_threads(1)
        try:
            unwrap(torch.optim.Adam.step)(self)
        finally:
            torch.set_num_threads(threads)

    step.hooked = True  # type: ignore[attr-defined]
    """Mark that keeps torch from wrapping the step. The wrapper's profiler record would cost as
    much as a small step."""

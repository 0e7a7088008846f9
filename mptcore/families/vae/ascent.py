"""Gradients of means over masks or observations, computed in parts if memory is short."""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, nn

from mptcore.runtime.out_of_memory import cut_alike, in_smaller_parts


def _nothing() -> None:
    """Reset nothing, for objectives without random draws."""


def ascend(
    objective: Callable[..., Tensor],
    rows: tuple[Tensor, ...],
    module: nn.Module,
    begin: Callable[[], object] = _nothing,
) -> Tensor:
    """Return an objective that is a mean over the rows of tensors (B, ...), and add the gradient of
    its descent to a module's parameters. `begin` resets the random draws of an attempt that ran out
    of memory."""

    def of_parts(parts: list[Tensor]) -> Tensor:
        begin()
        module.zero_grad(set_to_none=True)
        values = []
        for some in cut_alike(rows, parts):
            share, value = len(some[0]) / len(rows[0]), objective(*some)
            descent = (-share * value).sum()  # a given gradient would import torch's compiler
            descent.backward()  # type: ignore[no-untyped-call]
            values.append(share * value.detach())
        return reduce(torch.add, values)

    return in_smaller_parts(of_parts, [torch.arange(len(rows[0]))])

"""Detect running out of memory, and repeat the work in smaller parts."""

import re
from collections.abc import Callable, Iterator
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

SIGNS = re.compile(
    "out of memory"  # CUDA itself, and torch's allocator
    "|DefaultCPUAllocator"
    r"|CU(BLAS|DNN|SOLVER|SPARSE|FFT)_\w*ALLOC\w*_FAILED"
    # A library that finds no memory for its own state says that it was not initialised.
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling `cublas\w*Create"
    "|CU(DNN|SOLVER)_STATUS_NOT_INITIALIZED",
    re.IGNORECASE,
)


class Divisible(Protocol):
    """Masks or sequences that can be computed in parts."""

    def __len__(self) -> int: ...
    def __getitem__(self, chosen: Tensor, /) -> Self: ...


WorkT = TypeVar("WorkT", bound=Divisible)
Result = TypeVar("Result")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that a CPU or GPU ran out of memory. Errors of all libraries
    are recognised."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or bool(
        isinstance(error, RuntimeError) and SIGNS.search(str(error))
    )


_shortages = 0


def shortages() -> int:
    """Return how often this process has run out of memory and repeated the work in smaller parts.
    Last digits of results may depend on the parts."""
    return _shortages


def _forget(_: object) -> None:
    """Ignore the size, for work that is not repeated at this size."""


def halve_on_oom(
    compute: Callable[[WorkT], Tensor],
    work: WorkT,
    too_large: Callable[[WorkT], None] = _forget,
) -> Tensor:
    """Compute work of B entries, (..., B). If memory is short, compute its halves instead, down to
    single entries. `too_large` is called with the size that did not fit, so that later work can be
    split in advance."""
    if len(work) < 2:
        return compute(work)
    results: list[Tensor] = []
    remaining, max_size = torch.arange(len(work)), len(work)
    while len(remaining):
        part = work if max_size == len(work) else work[remaining[:max_size]]
        try:
            computed = compute(part)
        except (MemoryError, RuntimeError) as error:
            if len(part) < 2 or not is_out_of_memory(error):
                raise
            computed = None
        if computed is None:  # here the error is gone, which keeps the computed tensors alive
            _note_shortage()
            too_large(part)
            max_size = -(-len(part) // 2)
        else:
            results.append(computed)
            remaining = remaining[max_size:]
    return results[0] if len(results) == 1 else torch.cat(results, dim=-1)


def split_on_oom(
    compute: Callable[[list[Tensor]], Result],
    parts: list[Tensor],
    too_large: Callable[[list[Tensor]], None] = _forget,
) -> Result:
    """Compute part by part. If memory is short, start again with halves of all parts, down to
    length 1. `too_large` is called with the parts that did not fit."""
    while True:
        try:
            return compute(parts)
        except (MemoryError, RuntimeError) as error:
            if all(len(part) < 2 for part in parts) or not is_out_of_memory(error):
                raise
        _note_shortage()
        too_large(parts)
        parts = [half for part in parts for half in part.chunk(2)]


def rowwise_on_oom(compute: Callable[..., tuple[Tensor, ...]], *rows: Tensor) -> tuple[Tensor, ...]:
    """Compute each row of tensors (B, ...) independently: (B, ...). If memory is short, use fewer
    rows at a time."""

    def computed(parts: list[Tensor]) -> tuple[Tensor, ...]:
        results = [compute(*some) for some in cut_alike(rows, parts)]
        if len(results) == 1:
            return results[0]
        return tuple(torch.cat(column) for column in zip(*results, strict=True))

    return split_on_oom(computed, [torch.arange(len(rows[0]))])


def cut_alike(rows: tuple[Tensor, ...], parts: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Split the rows of tensors (B, ...) into parts of the same lengths as these."""
    sizes = [len(part) for part in parts]
    return zip(*(torch.split(tensor, sizes) for tensor in rows), strict=True)


def _note_shortage() -> None:
    """Count the shortage, and release the GPU memory that torch's allocator caches, which may be
    fragmented."""
    global _shortages
    _shortages += 1
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

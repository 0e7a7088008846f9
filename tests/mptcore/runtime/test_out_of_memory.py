"""Detection of memory exhaustion, and the retry with less memory."""

import pytest
import torch
from torch import Tensor

from mptcore.runtime.out_of_memory import (
    halve_on_oom,
    is_out_of_memory,
    rowwise_on_oom,
    shortages,
    split_on_oom,
)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate(&handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
    ],
)
def test_out_of_memory_errors_of_all_libraries_are_recognised(message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(ValueError(message))


def test_other_errors_are_not_out_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("?"))
    for message in (
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
        "cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED",
        "CUDA error: device-side assert triggered",
    ):
        assert not is_out_of_memory(RuntimeError(message))


def squares(most: int, seen: list[int], numbers: Tensor) -> Tensor:
    """Return the squares of as many numbers as fit into memory."""
    seen.append(len(numbers))
    if len(numbers) > most:
        raise torch.OutOfMemoryError
    return numbers.square()[None]


@pytest.mark.parametrize(("most", "parts"), [(9, [9]), (4, [9, 5, 3, 3, 3]), (1, None)])
def test_batches_are_halved_down_to_one(most: int, parts: list[int] | None) -> None:
    numbers, seen, told = torch.arange(9.0), list[int](), list[int]()
    before = shortages()
    found = halve_on_oom(
        lambda some: squares(most, seen, some), numbers, lambda some: told.append(len(some))
    )
    assert torch.equal(found, numbers.square()[None])
    assert parts in (None, seen)
    assert min(seen) >= 1
    assert told == [one for one in seen if one > most]
    assert shortages() - before == len(told)


def test_an_empty_batch_is_not_halved() -> None:
    nothing = torch.zeros(0)
    assert torch.equal(halve_on_oom(lambda some: squares(1, [], some), nothing), nothing[None])


def test_a_single_item_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        halve_on_oom(lambda some: squares(0, [], some), torch.arange(4.0))
    with pytest.raises(torch.OutOfMemoryError):
        split_on_oom(lambda parts: squares(0, [], parts[0]), [torch.arange(3)])


def test_other_errors_are_raised_at_once() -> None:
    def fail(_: object) -> Tensor:
        seen.append(1)
        raise RuntimeError("something else")

    seen: list[int] = []
    with pytest.raises(RuntimeError, match="something else"):
        halve_on_oom(fail, torch.ones(4))
    with pytest.raises(RuntimeError, match="something else"):
        split_on_oom(fail, [torch.ones(4)])
    assert seen == [1, 1]


def test_the_computation_restarts_with_smaller_parts() -> None:
    def compute(parts: list[Tensor]) -> list[int]:
        for part in parts:
            squares(2, [], part)
        return [len(part) for part in parts]

    told: list[list[int]] = []
    before = shortages()
    parts = [torch.arange(5), torch.arange(1)]
    found = split_on_oom(compute, parts, lambda parts: told.append([len(p) for p in parts]))
    assert found == [2, 1, 1, 1, 1]
    assert told == [[5, 1], [3, 2, 1]]
    assert shortages() - before == 2


@pytest.mark.parametrize("most", [5, 2])
def test_rows_are_computed_together_or_in_parts(most: int) -> None:
    asked: list[int] = []

    def compute(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        assert len(one) == len(other)
        return squares(most, asked, one)[0], -other

    one, other = torch.arange(5.0), torch.arange(10.0).view(5, 2)
    found = rowwise_on_oom(compute, one, other)
    assert torch.equal(found[0], one.square())
    assert torch.equal(found[1], -other)
    assert asked[0] == 5
    assert max(asked[-2:]) <= most

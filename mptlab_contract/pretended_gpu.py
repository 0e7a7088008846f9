"""A GPU that is none: CPU tensors that claim to lie on cuda:0, refuse what CUDA refuses, and count.

Within `pretended_gpu()` the device cuda:0 is there. What is computed on it is computed, by the
kernels of the CPU; but its tensors refuse to be mixed with those of the CPU and to be drawn by
their generators, and kernels, synchronisations and copies are counted. It shows what code asks of a
device, and neither CUDA's digits nor its speed.

For torch's own C++ such a tensor lies on the device `meta`, which needs no CUDA to take gradients.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar
from unittest.mock import patch
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
GIB = 2**30
CpuGenerator = torch.Generator
"""The original torch.Generator, without the simulated GPU."""

NO_KERNEL = {"_local_scalar_dense", "_unsafe_view", "is_same_size", "lift_fresh"}
"""Operations that move no numbers. Creating an empty tensor or a view is also free."""
SYNCHRONISES = {
    "_linalg_check_errors", "_local_scalar_dense", "_unique2", "bincount", "equal", "masked_select",
    "nonzero", "unique_consecutive", "unique_dim",
}  # fmt: skip
"""Operations for which the host waits, because only the device knows their result or its size."""
LIKE_ANOTHER = {"_to_copy", "scalar_tensor"}
"""Operations that torch calls to place a tensor or a number on the device of another tensor."""
TAKES_INDICES = {"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"}


@dataclass
class PretendedGpu:
    """Counts of the work for the device."""

    launches: int = 0
    synchronisations: int = 0
    to_device: int = 0
    """Copies of any size."""
    to_host: int = 0
    """Copies; each is a synchronisation too."""
    waited: int = 0
    """Copies to the device for which the host may wait: from unpinned memory, or blocking ones."""
    forks: list[torch.device] = field(default_factory=list)
    """The devices whose generators were read."""
    pinned: list[Tensor] = field(default_factory=list)
    """Memory that was pinned."""
    most_numbers: int | None = None
    """In a tensor that the device has memory for; None: any number."""
    refused: int = 0
    """Tensors that it had no memory for."""

    def pin(self, held: Tensor) -> Tensor:
        """Return a copy, as Tensor.pin_memory does."""
        self.pinned.append(held.clone())
        return self.pinned[-1]

    @property
    def asked(self) -> dict[str, int]:
        """Return the counts."""
        return {one.name: getattr(self, one.name) for one in fields(self)[:5]}

    def reset(self) -> None:
        """Count from nothing."""
        for one in fields(self)[:5]:
            setattr(self, one.name, 0)


class OnGpu(Tensor):
    """A tensor on the pretended device, and the tensor of the CPU that holds its numbers."""

    held: Tensor
    device = DEVICE
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type["OnGpu"], held: Tensor) -> "OnGpu":
        made: OnGpu = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("meta"),
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()  # torch refuses it of any tensor with a class of its own

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnGpu({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise AssertionError(f"{func} on a tensor of a GPU that was pretended before")


class OnGpuGenerator(CpuGenerator):
    """Replacement for torch.Generator. For the simulated device it draws with the CPU's kernels, so
    it gives the numbers of a CPU generator with the same seed."""

    device = DEVICE
    made: ClassVar[WeakValueDictionary[int, "OnGpuGenerator"]] = WeakValueDictionary()
    """Generators by the address that torch's C++ code uses for them; it passes on no Python
    class."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type == "cpu":
            return CpuGenerator()
        one = super().__new__(cls)
        cls.made[_address(one)] = one
        return one

    def get_state(self) -> Tensor:
        return nn.functional.pad(super().get_state(), (0, 1))  # of another length, as CUDA's is

    def set_state(self, state: Tensor) -> Any:
        return super().set_state(state[:-1])


class Operation:
    """Effect of a torch operation on a device."""

    def __init__(self, func: Any):
        self.name: str = func.overloadpacket.__name__
        self.is_composite: bool = func._can_decompose()
        self.reshapes = torch.Tag.inplace_view in func.tags
        aliases = [one.alias_info for one in func._schema.returns]
        self.gives_view = bool(aliases) and all(one and not one.is_write for one in aliases)
        self.is_launched = not (self.name in NO_KERNEL or "empty" in self.name or self.gives_view)
        self.synchronises = self.name in SYNCHRONISES
        self.takes_indices = self.name in TAKES_INDICES

    of: ClassVar[Any]


Operation.of = staticmethod(cache(Operation))


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operation that reaches a device, those of the backward pass too."""

    def __init__(self, gpu: PretendedGpu):
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled; importing the compiler would take seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        here = OnGpu in types or _is_gpu(func, options.get("device"))
        _check_generators(here, [*args, *options.values()])
        if not here:
            return func(*args, **options)
        operation = Operation.of(func)
        if operation.is_composite:  # in inference mode torch leaves its parts to us
            with self:
                return func.decompose(*args, **options)
        match operation.name:
            case "_to_copy":
                return self._moved(func, args[0], options)
            case "copy_":
                return self._copied(func, *args)
            case _:
                return self._computed(func, operation, args, options)

    def _moved(self, func: Any, x: Tensor, options: dict[str, Any]) -> Tensor:
        """Move the tensor to another device or type."""
        here = isinstance(x, OnGpu)
        device = options.pop("device", None)
        there = here if device is None else _is_gpu(func, device)
        if here and there and options.get("dtype") in (None, x.dtype):
            return OnGpu(_held(x))
        self._count_copy(here, there)
        if there and not here:
            at_once = options.get("non_blocking") and any(x is one for one in self.gpu.pinned)
            self.gpu.waited += not at_once
        copy: Tensor = func(_held(x), **options)
        return self._allocated(copy) if there else copy

    def _copied(self, func: Any, into: Tensor, x: Tensor, *_: Any) -> Tensor:
        self._count_copy(isinstance(x, OnGpu), isinstance(into, OnGpu))
        func(_held(into), _held(x))
        return into

    def _count_copy(self, here: bool, there: bool) -> None:
        if here and there:
            self.gpu.launches += 1
        elif there:
            self.gpu.to_device += 1
        else:
            self.gpu.to_host += 1
            self.gpu.synchronisations += 1

    def _computed(
        self, func: Any, operation: Operation, args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        tensors = list(_tensors([*args, *options.values()]))
        self._check_devices(operation, args, tensors)
        if operation.reshapes:
            with no_dispatch():
                func(*args, **options)  # the public operations
        if options.get("device") is not None:
            options["device"] = torch.device("cpu")
        compute = COMPUTED_HERE.get(operation.name, func)
        found = compute(*_held(args), **{name: _held(one) for name, one in options.items()})
        self.gpu.launches += operation.is_launched
        asks = operation.synchronises or (operation.takes_indices and _has_mask(args[1]))
        self.gpu.synchronisations += asks
        if not operation.gives_view:
            given = {id(one.held): one for one in tensors if isinstance(one, OnGpu)}
            return _each(
                found,
                lambda held: given[id(held)] if id(held) in given else self._allocated(held),
            )
        # A view of what was made outside of inference mode is as if it had been made there too.
        with torch.inference_mode(tensors[0].is_inference()):
            return _each(found, OnGpu)

    def _check_devices(
        self, operation: Operation, args: Sequence[Any], tensors: Sequence[Tensor]
    ) -> None:
        """Numbers of the CPU may take part, and so may indices, which cost a copy."""
        others = [one for one in tensors if not isinstance(one, OnGpu) and one.ndim > 0]
        if others and operation.takes_indices and isinstance(args[0], OnGpu):
            indices = {id(one) for one in args[1]}
            self.gpu.to_device += sum(id(one) in indices for one in others)
            others = [one for one in others if id(one) not in indices]
        if others:
            raise RuntimeError(
                f"{operation.name}: Expected all tensors to be on the same device, but found at "
                "least two devices, cuda:0 and cpu!"
            )

    def _allocated(self, held: Tensor) -> OnGpu:
        most = self.gpu.most_numbers
        if most is not None and held.numel() > most:
            self.gpu.refused += 1
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {held.nbytes} B")
        return OnGpu(held)


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, key_ends: Tensor, longest: int,
    longest_key: int, dropout: float, is_causal: bool, *_: Any, scale: float | None = None,
    window_size_left: int = -1, window_size_right: int = -1, **__: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute the attention of each sequence of a row (T, heads, d) by itself: a CPU has no kernel
    for all of them."""
    assert longest == longest_key == int(ends.diff().max())
    assert torch.equal(ends, key_ends)
    assert int(ends[-1]) == len(query)
    assert (dropout, is_causal) == (0.0, False)
    found = []
    for begin, end in pairwise(ends.tolist()):
        after = torch.arange(end - begin) - torch.arange(end - begin)[:, None]
        seen = torch.ones_like(after, dtype=torch.bool)
        if window_size_left >= 0:
            seen &= after >= -window_size_left
        if window_size_right >= 0:
            seen &= after <= window_size_right
        q, k, v = (one[begin:end].transpose(0, 1) for one in (query, key, value))
        of_sequence = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=scale
        )
        found.append(of_sequence.transpose(0, 1))
    return torch.cat(found), *(torch.empty(0) for _ in range(4))


COMPUTED_HERE: dict[str, Callable[..., Any]] = {"_flash_attention_forward": _flash_attention}
"""Operations that only a GPU has."""


def _is_gpu(func: Any, device: Any) -> bool:
    """Return whether a requested device is the simulated one. If torch's C++ code takes the device
    from a tensor, it requests `meta`; other code requests `meta` for a network without weights."""
    kind = None if device is None else torch.device(device).type
    return kind == "cuda" or (kind == "meta" and func.overloadpacket.__name__ in LIKE_ANOTHER)


def _address(generator: Any) -> int:
    return int(generator._cdata)


def _check_generators(here: bool, given: Iterable[Any]) -> None:
    """Check, as torch's kernels do, that a generator draws only on its own device."""
    for one in given:
        if isinstance(one, CpuGenerator) and (_address(one) in OnGpuGenerator.made) != here:
            asked, found = ("cuda", "cpu") if here else ("cpu", "cuda")
            raise RuntimeError(
                f"Expected a '{asked}' device type for generator but found '{found}'"
            )


def _held(given: Any) -> Any:
    if isinstance(given, OnGpu):
        return given.held
    if isinstance(given, list | tuple):
        return type(given)(_held(one) for one in given)
    return given


def _tensors(given: Iterable[Any]) -> Iterator[Tensor]:
    for one in given:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)


def _has_mask(indices: Iterable[Tensor | None]) -> bool:
    """Boolean indices on the device: how many are true, only it knows."""
    return any(isinstance(one, OnGpu) and one.dtype == torch.bool for one in indices)


def _each(found: Any, wrap: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(found, Tensor):
        return wrap(found)
    if isinstance(found, list | tuple):
        return type(found)(_each(one, wrap) for one in found)
    return found


@contextmanager
def pretended_gpu(memory_bytes: int = 80 * GIB) -> Iterator[PretendedGpu]:
    """A GPU with this much memory, all of it free, within this block."""
    gpu = PretendedGpu()

    def state_of(device: Any = DEVICE) -> Tensor:
        gpu.forks.append(torch.device(device))
        return torch.get_rng_state()

    answers: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda _=None: "a pretended GPU",
        "mem_get_info": lambda _=None: (memory_bytes, memory_bytes),
        "empty_cache": lambda: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_rng_state": state_of,
        "set_rng_state": lambda *_: None,
    }
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    lifts = torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(torch.cuda, **answers))
        stack.enter_context(patch.object(torch, "Generator", OnGpuGenerator))
        stack.enter_context(patch.object(Tensor, "pin_memory", lambda held: gpu.pin(held)))
        # A parameter that moves stays the same object: what is tied stays tied.
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        torch.__future__.set_swap_module_params_on_conversion(True)
        # torch.tensor(…, device="cuda") makes it on the CPU, and then moves it.
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts)
        torch._C._set_only_lift_cpu_tensors(True)
        stack.enter_context(patch.dict(os.environ))
        stack.callback(torch.set_deterministic_debug_mode, "default")
        stack.enter_context(Dispatch(gpu))
        yield gpu

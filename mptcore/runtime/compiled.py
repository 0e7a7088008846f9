"""Compile loops with numba, and decide whether a process uses them.

Compiled code is kept beside the module it belongs to, in `__pycache__`. Where that folder cannot be
written, as in a container with a read-only file system, it is still read from there. It contains
the loops of other modules that it calls, so these stand in the same folder.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

import torch

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])
PARTS = 4
"""Number of parts that each thread gets, so that threads end together."""


def kernel(signature: str) -> Callable[[FunctionT], FunctionT]:
    """Compile a function for these argument types when it is defined, or read it from the cache. It
    runs without the interpreter's lock."""
    from numba import njit

    compiled = njit(signature, cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
    return cast(Callable[[FunctionT], FunctionT], compiled)


def inlined(*fastmath: str) -> Callable[[FunctionT], FunctionT]:
    """Compile a function as a part of the kernels that call it. `fastmath` names changes of
    floating-point arithmetic that the compiler may make. They are made once, at compilation, so the
    results remain the same."""
    from numba import njit

    compiled = njit(nogil=True, error_model="numpy", fastmath={"contract", *fastmath})
    return cast(Callable[[FunctionT], FunctionT], compiled)


@cache
def kernels(name: str) -> ModuleType | None:
    """Import a module of compiled loops. None if numba is missing or MPT_KERNELS is `torch`; then
    torch computes the same."""
    if os.environ.get("MPT_KERNELS") == "torch":
        return None
    try:
        from numba import config
    except ImportError:
        return None
    with _cache_of(name, config):
        return import_module(name)


@contextmanager
def _cache_of(name: str, config: ModuleType) -> Iterator[None]:
    """Let numba find the compiled code of a module. If the code's folder is not writable, numba
    uses a copy."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin)
    cache_folder = source.parent / "__pycache__"
    compiled = _up_to_date(source, cache_folder)
    if not compiled:
        text = f"{name}: compiling; this takes some ten seconds, once per machine\n"
        sys.stderr.write(text)
    if os.access(cache_folder if cache_folder.exists() else source.parent, os.W_OK):
        for file in {*cache_folder.glob(f"{source.stem}.*.nb?")} - compiled:
            file.unlink(missing_ok=True)
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mptcore-") as folder:
        before, config.CACHE_DIR = config.CACHE_DIR, folder  # type: ignore[attr-defined]
        try:
            from numba.core.caching import _CacheLocator

            subpath = _CacheLocator.get_suitable_cache_subpath(str(source))  # type: ignore[no-untyped-call]
            copy = Path(folder) / subpath
            copy.mkdir()
            for file in compiled:
                shutil.copy(file, copy)
            yield
        finally:
            config.CACHE_DIR = before  # type: ignore[attr-defined]


def _up_to_date(source: Path, cache_folder: Path) -> set[Path]:
    """Return the files with compiled code of a module that are newer than this file and all modules
    beside it. Their loops are compiled into those that call them, and numba alone would use code
    compiled before these changed."""
    sources = [Path(__file__), *source.parent.glob("*.py")]
    changed = max(file.stat().st_mtime for file in sources)
    files = cache_folder.glob(f"{source.stem}.*.nb?")
    return {file for file in files if file.stat().st_mtime >= changed}


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def parallel_ranges(compute: Callable[[int, int], None], count: int, at_least: int) -> None:
    """Call `compute(first, end)` for parts of range(count), `at_least` numbers long or all, in as
    many threads as torch uses. Parts must not depend on each other."""
    threads = torch.get_num_threads()
    length = max(at_least, -(-count // (PARTS * threads)))
    firsts = range(0, count, length)
    if threads == 1 or len(firsts) < 2:
        compute(0, count)
        return
    ends = [min(first + length, count) for first in firsts]
    list(_pool(threads).map(compute, firsts, ends))


def run_in_threads(calls: Sequence[Callable[[], None]]) -> None:
    """Make the calls, in as many threads as torch uses. They must not depend on each other."""
    threads = torch.get_num_threads()
    if threads == 1 or len(calls) < 2:
        for call in calls:
            call()
        return
    list(_pool(threads).map(lambda call: call(), calls))

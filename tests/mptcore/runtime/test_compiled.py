"""Compiled code is kept, found again, and safe to fork from."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
import torch

from mptcore.runtime.compiled import run_in_threads
from tests.support.forks import run_code

REPOSITORY = Path(__file__).parents[3]
LOOPS = """
from mptcore.runtime.compiled import inlined, kernel

@inlined()
def twice(x):
    return 2 * x

@kernel("f8(f8)")
def doubled(x):
    return twice(x)
"""
USE = """
from mptcore.runtime.compiled import kernels
loops = kernels("loops")
assert loops.doubled(4.0) == 8.0
print(*loops.doubled.stats.cache_hits.values(), sum(loops.doubled.stats.cache_misses.values()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module of compiled loops."""
    (tmp_path / "loops.py").write_text(LOOPS)
    yield tmp_path
    tmp_path.chmod(0o755)


def compiled_by_its_owner(folder: Path) -> None:
    first = run_code(USE, folder, {})
    assert first.stdout.split() == ["1"]
    assert "compiling" in first.stderr
    (folder / "__pycache__").chmod(0o555)
    folder.chmod(0o555)


def test_compiled_code_is_read_from_a_folder_that_cannot_be_written(folder: Path) -> None:
    compiled_by_its_owner(folder)
    second = run_code(USE, folder, {})
    assert second.stdout.split() == ["1", "0"]
    assert second.stderr == ""


def test_a_folder_that_cannot_be_written_and_no_home_do_not_stop_a_run(folder: Path) -> None:
    folder.chmod(0o555)
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null"}
    found = run_code(USE, folder, nowhere)
    assert found.stdout.split() == ["1"]


@pytest.fixture(scope="module")
def fresh() -> list[str]:
    """The kernels of a fresh process, first as if without numba, and its number of threads."""
    code = """
import os
import sys
sys.modules["numba"] = None
from mptcore.run import KERNELS, load_kernels
from mptcore.runtime.compiled import kernels
load_kernels()
print({*map(kernels, KERNELS)})
del sys.modules["numba"]
kernels.cache_clear()
load_kernels()
print(None in map(kernels, KERNELS))
print(len(os.listdir("/proc/self/task")))
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY,
        env=environment,
    )  # fmt: skip
    return done.stdout.split()


def test_a_process_without_numba_computes_by_torch(fresh: list[str]) -> None:
    assert fresh[0] == "{None}"


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_loading_the_kernels_starts_no_thread(fresh: list[str]) -> None:
    """The warm parent forks afterwards."""
    assert fresh[1:] == ["False", "1"]


def test_all_modules_are_compiled_in_other_processes(folder: Path) -> None:
    (folder / "more.py").write_text(LOOPS)
    code = """
import sys
from mptcore import run
run.KERNELS = "loops", "more"
run.compile_kernels()
print("loops" in sys.modules, "more" in sys.modules)
"""
    found = run_code(code, folder, {})
    assert found.stdout.split() == ["False", "False"]
    assert found.stderr.count("compiling") == 2
    kept = {file.name.partition(".")[0] for file in (folder / "__pycache__").glob("*.nbi")}
    assert kept == {"loops", "more"}


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_are_made_together(threads: int) -> None:
    """With two threads, a call may wait for the next one."""
    before, made = torch.get_num_threads(), Event()

    def first() -> None:
        assert made.wait(60) if threads == 2 else not made.is_set()

    torch.set_num_threads(threads)
    try:
        run_in_threads([first, made.set])
        run_in_threads([])
    finally:
        torch.set_num_threads(before)
    assert made.is_set()


def test_a_fork_has_threads_of_its_own(folder: Path) -> None:
    code = """
import os, signal, torch
from mptcore.runtime.compiled import parallel_ranges
torch.set_num_threads(2)
found = []
parallel_ranges(lambda first, end: found.append(end - first), 100, 1)
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that waits for threads which it does not have
    parallel_ranges(lambda first, end: found.append(end - first), 100, 1)
    os._exit(sum(found) != 200)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_code(code, folder, {}).stdout.split() == ["0"]


def test_code_compiled_before_a_loop_that_it_calls_changed_is_not_used(folder: Path) -> None:
    """Numba itself looks only at the file of the kernel."""
    begin, kernel = LOOPS.split("@kernel")
    (folder / "sums.py").write_text(begin)
    (folder / "loops.py").write_text(
        f"from mptcore.runtime.compiled import kernel\nfrom sums import twice\n@kernel{kernel}"
    )
    assert run_code(USE, folder, {}).stdout.split() == ["1"]
    assert run_code(USE, folder, {}).stdout.split() == ["1", "0"]
    (folder / "sums.py").write_text(begin.replace("2 * x", "3 * x"))
    changed_later(folder / "sums.py")
    assert run_code(USE.replace("8.0", "12.0"), folder, {}).stdout.split() == ["1"]


def test_code_compiled_in_another_way_is_not_used(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """compiled.py has the options of the compiler."""
    assert run_code(USE, folder, {}).stdout.split() == ["1"]
    compiling = tmp_path_factory.mktemp("runtime") / "compiled.py"
    compiling.touch()
    changed_later(compiling)
    code = f"import mptcore.runtime.compiled as module\nmodule.__file__ = {str(compiling)!r}\n"
    assert run_code(code + USE, folder, {}).stdout.split() == ["1"]


def changed_later(file: Path) -> None:
    later = time.time() + 60
    os.utime(file, (later, later))

"""`make mutants`: small changes to the code that tests should notice, and those that none did.

mutmut makes the mutants and asks the tests that reach each. It works in a folder of its own for
each module, where its results stay: cut it off at any time, and call it again. What survived is
asked again once the tests have changed; what was killed, once its function has. With `--one-in 5`
only the first, the sixth, … of each function are asked: what share is killed, to within a few
percent, in a fifth of the time.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from tests.mutants.modules import MODULES
from tests.mutants.results import forget_survivors, load, report

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".mutants"
IN_MEMORY = Path("/dev/shm")
PACKAGES = ("mptcore", "service", "worker", "mptlab")
BESIDE = ("tests", "benchmarks", "docs", "migrations", "Makefile", "README.md", "CHANGELOG.md",
          "CONTRIBUTING.md", "alembic.ini", "constraints.txt")  # fmt: skip

ENDINGS = {1: "0-9", 2: "13579", 5: "16", 10: "1"}
"""How the numbers end of one in so many mutants, the first of each function among them."""

CONFIG = """
[tool.mutmut]
source_paths = {packages}
only_mutate = ["{module}"]
also_copy = {beside}
do_not_mutate_patterns = ['\\blog\\.(debug|info|warning|error|exception)\\(', '^\\s*assert ']
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
process_isolation = "forkserver"
use_setproctitle = false
track_dependencies = false
on_dependency_change = "ignore"
use_git_change_detection = false
# An endless loop dies after four times what its tests take, and sixteen seconds.
timeout_multiplier = 4.0
timeout_constant = 4.0
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="MODULE", help="files, e.g. service/users.py")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--one-in", type=int, default=1, choices=ENDINGS, help="of each function's")
    parser.add_argument("--report", action="store_true", help="print what is known, run nothing")
    given = parser.parse_args(arguments)
    if unknown := [module for module in given.only if module not in MODULES]:
        parser.error(f"not among tests/mutants/modules.py: {', '.join(unknown)}")
    modules = given.only or list(MODULES)
    with suppress(KeyboardInterrupt):
        for module in () if given.report else modules:
            ask(module, given.jobs, given.one_in)
    print(report({module: folder(module) for module in modules}))


def ask(module: str, jobs: int, one_in: int = 1) -> None:
    """Ask the tests about the mutants of a module that have no answer yet, or a part of these."""
    print(f"\n== {module}", flush=True)
    work = folder(module)
    prepare(work, module)
    digest = tests_digest(MODULES[module])
    known = work / "tests.sha256"
    if not known.exists() or known.read_text() != digest:
        (work / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
        forget_survivors(work, module)
    known.write_text(digest)
    names = unasked(work, module, one_in) if one_in > 1 else []
    if names is None:
        return
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(jobs)]
    command += names
    store = work / "store"  # migrated once, by the run that takes the statistics
    rmtree(store, ignore_errors=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPT_TEST_STORE": str(store)}
    if IN_MEMORY.is_dir():
        environment["TMPDIR"] = str(IN_MEMORY)  # databases that no power cut needs to find again
    if subprocess.run(command, cwd=work, env=environment, check=False).returncode:
        print(f"{module}: mutmut ended early; what it found so far is kept", flush=True)


def unasked(work: Path, module: str, one_in: int) -> list[str] | None:
    """The names, or a pattern where none is known yet; None where all were asked."""
    pattern = f"*__mutmut_*[{ENDINGS[one_in]}]"
    known = load(work, module).get("exit_code_by_key", {})
    if not known:
        return [pattern]
    return [one for one, code in known.items() if code is None and fnmatch(one, pattern)] or None


def folder(module: str) -> Path:
    """Where a module's mutants and their results are kept."""
    return KEPT / module.removesuffix(".py").replace("/", ".")


def prepare(work: Path, module: str) -> None:
    """Give mutmut the repository as it stands, and its settings for this module."""
    work.mkdir(parents=True, exist_ok=True)
    for name in (*PACKAGES, *BESIDE):
        if not (work / name).is_symlink():
            (work / name).symlink_to(ROOT / name)
    settings = CONFIG.format(
        packages=list(PACKAGES), module=module, beside=list(BESIDE), tests=list(MODULES[module])
    )
    (work / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + settings)
    rmtree(work / "mutants" / "tests", ignore_errors=True)  # mutmut leaves what is gone from here


def tests_digest(tests: Sequence[str]) -> str:
    """The digest of a module's tests and of what they share."""
    roots = [ROOT / path for path in (*tests, "tests/support", "tests/conftest.py")]
    files = sorted(file for root in roots for file in (*root.rglob("*.py"), root) if file.is_file())
    return sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


if __name__ == "__main__":
    main()

"""`make mutants`: make small changes to the code that tests should detect, and list the undetected
ones.

mutmut makes the mutants and runs the tests that reach each. Modules with the same tests share a
working folder, where the results stay: interrupt the command at any time, and call it again. A
survivor is asked again once the tests have changed; a killed mutant once its function has. With
`--one-in 5` a random fifth is asked, always the same one: it gives the share of killed mutants to
within a few percent in a fifth of the time. `--part 1` to `--part 4` are the other fifths.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from tests.mutants.modules import MODULES, NARROWER, PACKAGES, ROOT, folder_of_tests
from tests.mutants.results import Sample, forget_survivors, load, meta_file, mutants_of, report

KEPT = ROOT / ".mutants"
IN_MEMORY = Path("/dev/shm")
BESIDE = ("tests", "benchmarks", "docs", "migrations", "Makefile", "README.md", "CHANGELOG.md",
          "CONTRIBUTING.md", "alembic.ini", "constraints.txt")  # fmt: skip

CONFIG = """
[tool.mutmut]
source_paths = {packages}
only_mutate = {modules}
also_copy = {beside}
do_not_mutate_patterns = ['\\blog\\.(debug|info|warning|error|exception)\\(', '^\\s*assert ']
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "tests.mutants.plugin", "-m",
                       "not containers and not mounts"]
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
    parser.add_argument(
        "only", nargs="*", metavar="MODULE", help="e.g. service/accounts/users.py, mptlab/"
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--one-in", type=int, default=1, help="ask a random sample of this share")
    parser.add_argument("--part", type=int, default=0, help="which of the samples, from 0")
    parser.add_argument("--report", action="store_true", help="print what is known, run nothing")
    given = parser.parse_args(arguments)
    modules = [one for one in MODULES if not given.only or one.startswith(tuple(given.only))]
    if unknown := [one for one in given.only if not any(m.startswith(one) for m in modules)]:
        parser.error(f"not among tests/mutants/modules.py: {', '.join(unknown)}")
    sample = Sample(given.one_in, given.part)
    groups: dict[Path, list[str]] = {}
    for module in modules:
        groups.setdefault(folder(module), []).append(module)
    with suppress(KeyboardInterrupt):
        for work, members in {} if given.report else groups.items():
            ask(work, members, given.jobs, sample)
    print(report({module: folder(module) for module in modules}, sample))


def ask(work: Path, modules: Sequence[str], jobs: int, sample: Sample) -> None:
    """Ask the tests about the mutants of a sample that have no answer yet.

    The modules share their tests, and the working folder.
    """
    print(f"\n== {work.name}: {', '.join(modules)}", flush=True)
    tests = MODULES[modules[0]]
    together = [module for module in MODULES if folder(module) == work]
    prepare(work, together, tests)
    digest = tests_digest(tests)
    known = work / "tests.sha256"
    if not known.exists() or known.read_text() != digest:
        (work / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
        for module in together:
            forget_survivors(work, module)
    known.write_text(digest)
    names = [name for module in modules for name in unasked(work, module, sample)]
    if not names:
        return
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(jobs)]
    command += names
    store = work / "store"  # migrated once, by the run that takes the statistics
    rmtree(store, ignore_errors=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPT_TEST_STORE": str(store)}
    if IN_MEMORY.is_dir():
        environment["TMPDIR"] = str(IN_MEMORY)  # databases that no power cut needs to find again
    if subprocess.run(command, cwd=work, env=environment, check=False).returncode:
        print(f"{work.name}: mutmut ended early; what it found so far is kept", flush=True)


def unasked(work: Path, module: str, sample: Sample) -> list[str]:
    """Return the mutants of a sample that have no answer yet."""
    answers = load(work, module).get("exit_code_by_key", {})
    names = mutants_of(work, module)
    return [name for name in names if name in sample and answers.get(name) is None]


def folder(module: str) -> Path:
    """Return where a module's mutants and their results are kept."""
    place = module.removesuffix(".py") if module in NARROWER else folder_of_tests(module)
    return KEPT / place.replace("/", ".")


def prepare(work: Path, modules: Sequence[str], tests: Sequence[str]) -> None:
    """Give mutmut the current repository, and its settings for these modules."""
    work.mkdir(parents=True, exist_ok=True)
    for name in (*PACKAGES, *BESIDE):
        if not (work / name).is_symlink():
            (work / name).symlink_to(ROOT / name)
    settings = CONFIG.format(
        packages=list(PACKAGES), modules=list(modules), beside=list(BESIDE), tests=list(tests)
    )
    (work / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + settings)
    rmtree(
        work / "mutants" / "tests", ignore_errors=True
    )  # mutmut keeps files that are deleted here
    for module in modules:
        written, meta = work / "mutants" / module, meta_file(work, module)
        if not meta.exists() or (
            written.exists() and written.stat().st_mtime > meta.stat().st_mtime
        ):
            written.unlink(missing_ok=True)  # mutmut was interrupted while it wrote this file


def tests_digest(tests: Sequence[str]) -> str:
    """Return the digest of these tests and of their shared files."""
    roots = [ROOT / path for path in (*tests, "tests/support", "tests/conftest.py")]
    files = sorted(file for root in roots for file in (*root.rglob("*.py"), root) if file.is_file())
    return sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


if __name__ == "__main__":
    main()

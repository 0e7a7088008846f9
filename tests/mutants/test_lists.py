"""The lists of `make mutants` name existing modules and tests."""

import ast
import json
import os
from pathlib import Path

import pytest

from tests.mutants import results
from tests.mutants.__main__ import folder, prepare, unasked
from tests.mutants.modules import LEFT_OUT, MODULES, NARROWER, NOT_ASKED, PACKAGES, ROOT
from tests.mutants.results import EQUIVALENT, Sample, equivalents, meta_file

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_each_module_with_a_function_is_tested_or_excluded_with_a_reason() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    with_functions = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if any(isinstance(node, FUNCTIONS) for node in ast.walk(ast.parse(file.read_text())))
    }
    assert with_functions == MODULES.keys() | LEFT_OUT.keys()
    assert not MODULES.keys() & LEFT_OUT.keys()
    assert all(LEFT_OUT.values())
    assert all((ROOT / test).exists() for test in NOT_ASKED)
    assert NARROWER.keys() <= MODULES.keys()


@pytest.mark.parametrize("module", NARROWER)
def test_the_tests_of_each_module_exist(module: str) -> None:
    for path in NARROWER[module]:
        assert (ROOT / path).exists(), path


def test_the_tests_of_a_module_are_those_at_its_place_or_above() -> None:
    assert set(MODULES["mptcore/data/texts.py"]) == files_in("tests/mptcore/data")
    specs = set(MODULES["mptcore/specs/base.py"])
    assert specs > files_in("tests/mptcore/specs")
    assert "tests/mptcore/families/vae/test_refused_specs.py" in specs
    commands = set(MODULES["mptlab/commands/reading.py"])
    assert commands | NOT_ASKED.keys() == files_in("tests/mptlab")
    assert folder("mptlab/commands/reading.py") == folder("mptlab/plots.py")
    assert folder("mptlab/tables.py") != folder("mptlab/plots.py")  # it has fewer tests


def files_in(folder: str) -> set[str]:
    return {file.relative_to(ROOT).as_posix() for file in (ROOT / folder).glob("test_*.py")}


def test_each_equivalent_mutant_has_a_reason_and_a_tested_module() -> None:
    lines = [line for line in EQUIVALENT.read_text().splitlines() if not line.startswith("#")]
    assert len(equivalents()) == len(lines)
    for mutant, reason in equivalents().items():
        assert reason, mutant
        assert mutant.split()[0] in MODULES
        function = mutant.split()[1].rstrip(":").rpartition(".")[2]
        assert f"def {function}(" in (ROOT / mutant.split()[0]).read_text()


def test_the_parts_of_a_sample_are_equal_and_make_the_whole() -> None:
    names = [f"m.x_f__mutmut_{number}" for number in range(1000)]
    parts = [{name for name in names if name in Sample(5, part)} for part in range(5)]
    assert set.union(*parts) == set(names)
    assert sum(map(len, parts)) == len(names)
    assert all(170 < len(part) < 230 for part in parts)


def test_only_mutants_without_a_result_are_run(tmp_path: Path) -> None:
    module = "mptcore/data/digits.py"
    prepare(tmp_path, [module], MODULES[module])
    names = results.mutants_of(tmp_path, module)
    assert len(names) > 4
    assert unasked(tmp_path, module, Sample()) == names
    file = meta_file(tmp_path, module)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"exit_code_by_key": dict.fromkeys(names) | {names[0]: 1}}))
    assert unasked(tmp_path, module, Sample()) == names[1:]
    second = [name for name in names[1:] if name in Sample(2, 1)]
    assert unasked(tmp_path, module, Sample(2, 1)) == second


def test_a_file_that_mutmut_did_not_finish_is_written_again(tmp_path: Path) -> None:
    module = "mptcore/data/digits.py"
    written, meta = tmp_path / "mutants" / module, meta_file(tmp_path, module)
    written.parent.mkdir(parents=True)
    for unfinished in (True, False):
        meta.write_text("{}")
        written.write_text("")
        os.utime(written, (0, meta.stat().st_mtime + (1 if unfinished else -1)))
        prepare(tmp_path, [module], MODULES[module])
        assert written.exists() != unfinished
    meta.unlink()
    prepare(tmp_path, [module], MODULES[module])
    assert not written.exists()

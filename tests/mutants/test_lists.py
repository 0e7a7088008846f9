"""The lists of `make mutants` name what is there."""

import json
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.mutants.__main__ import ENDINGS, ROOT, unasked
from tests.mutants.modules import MODULES
from tests.mutants.results import EQUIVALENT, equivalents, meta_file


@pytest.mark.parametrize("module", MODULES)
def test_a_module_and_its_tests_are_there(module: str) -> None:
    for path in (module, *MODULES[module]):
        assert (ROOT / path).exists(), path


def test_each_equivalent_mutant_has_a_reason_and_is_of_a_module_that_is_asked() -> None:
    lines = [line for line in EQUIVALENT.read_text().splitlines() if not line.startswith("#")]
    assert len(equivalents()) == len(lines)
    for mutant, reason in equivalents().items():
        assert reason, mutant
        assert mutant.split()[0] in MODULES
        function = mutant.split()[1].rstrip(":").rpartition(".")[2]
        assert f"def {function}(" in (ROOT / mutant.split()[0]).read_text()


@pytest.mark.parametrize("one_in", [2, 5, 10])
def test_a_part_has_the_first_of_each_function_and_its_share(tmp_path: Path, one_in: int) -> None:
    """What has no answer yet, of those; none where all have one."""
    names = [f"m.x_f__mutmut_{i}" for i in range(1, 101)]
    (pattern,) = unasked(tmp_path, "m.py", one_in) or []
    part = [name for name in names if fnmatch(name, pattern)]
    assert part == names[::one_in]
    file = meta_file(tmp_path, "m.py")
    file.parent.mkdir()
    file.write_text(json.dumps({"exit_code_by_key": dict.fromkeys(names) | {names[0]: 1}}))
    assert unasked(tmp_path, "m.py", one_in) == part[1:]
    file.write_text(json.dumps({"exit_code_by_key": dict.fromkeys(names, 1)}))
    assert unasked(tmp_path, "m.py", one_in) is None
    assert set(ENDINGS) == {1, 2, 5, 10}

"""The lists of `make mutants` name what is there."""

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.modules import MODULES
from tests.mutants.results import EQUIVALENT, equivalents


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

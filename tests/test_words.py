"""Plain words: the first words of docstrings."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("mptcore", "service", "worker", "mptlab", "mptlab_contract", "tests", "benchmarks")
INVERTED = re.compile(
    r"(What|Of|Who|Whom|Whose|Those|As|How|By|Whether|Where|That|In which)\b", re.IGNORECASE
)
"""First words of a docstring that names neither an action nor a thing."""
CANDIDATE = re.compile(rf"""^\s*\w?["']+\s*{INVERTED.pattern}""", re.IGNORECASE | re.MULTILINE)
"""Line that such a docstring begins with. Only files with one are parsed."""


def inverted(source: str) -> list[int]:
    """Return the lines of docstrings (of modules, classes, functions, fields) that begin so."""
    if not CANDIDATE.search(source):
        return []
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and INVERTED.match(str(node.value.value).strip())
    ]


def test_docstrings_begin_with_an_action_or_a_thing() -> None:
    assert inverted('b = 1\n"""of B"""\ndef d(self):\n    \'Assign d.\'\n') == [2]
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line in inverted(file.read_text())
    ]
    assert not wrong, "begin with a verb or a noun:\n" + "\n".join(wrong)

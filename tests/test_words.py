"""Plain words: the first words of docstrings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("mptcore", "service", "worker", "mptlab", "tests", "benchmarks")
INVERTED = re.compile(
    r"(What|Of|Who|Whom|Whose|Those|As|How|By|Whether|Where|That|In which)\b", re.IGNORECASE
)
"""First words of a docstring that names neither an action nor a thing."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of modules, classes, functions and fields, with their lines."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", [])
        for statement in body if isinstance(body, list) else []:  # not of an expression
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def inverted(source: str) -> list[int]:
    """Return the lines of docstrings that begin with one of the words."""
    return [line for line, text in docstrings(source) if INVERTED.match(text.strip())]


def test_docstrings_that_begin_with_such_a_word_are_found() -> None:
    source = '"""What it is."""\nclass A:\n    """A class."""\n    b = 1\n    """of B"""\n'
    source += "    def c(self):\n        '''In which c.'''\n    def d(self):\n        'Assign d.'\n"
    assert inverted(source) == [1, 5, 7]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_an_action_or_a_thing(folder: str) -> None:
    found = {
        str(file.relative_to(ROOT)): lines
        for file in sorted((ROOT / folder).rglob("*.py"))
        if (lines := inverted(file.read_text()))
    }
    assert found == {}

"""Grammar of `filter=`: comparisons joined by and, or, not.

metrics.lml{seed=4} > -61 and status = succeeded and tag = "x" and spec.model.latent_dim in (1, 2)
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput

GRAMMAR = r"""
?start: any
?any: all (_OR all)*
?all: one (_AND one)*
?one: _NOT one -> negated
    | "(" any ")"
    | FIELD labels? OPERATOR value -> compared
    | FIELD labels? _IN "(" value ("," value)* ")" -> among
order: FIELD labels? DIRECTION?
labels: "{" label ("," label)* "}"
label: FIELD "=" value
?value: NUMBER | STRING | MOMENT | WORD

_OR.3: /or\b/i
_AND.3: /and\b/i
_NOT.3: /not\b/i
_IN.3: /in\b/i
DIRECTION.3: /(asc|desc)\b/i
OPERATOR: "=" | "!=" | "<=" | ">=" | "<" | ">" | "~"
FIELD: /[a-zA-Z_]\w*(\.\w+)*/
STRING: /"[^"]*"|'[^']*'/
MOMENT.2: /\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?/
NUMBER.1: /[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?/
WORD: /[^\W\d][\w.:@\/-]*/
%ignore /\s+/
"""
_PARSER = Lark(GRAMMAR, parser="lalr", start=["start", "order"], maybe_placeholders=False)
MAX_DEEP = 20
MAX_COMPARISONS = 50
MAX_VALUES = 200
"""Maximum number of values in the lists of a filter. Each becomes a comparison of its own in SQL,
and SQLite nests a thousand at most."""
Value = str | float | bool | None

SAID = {
    "FIELD": "a field",
    "OPERATOR": "one of = != < <= > >= ~",
    "STRING": "text in quotes",
    "NUMBER": "a number",
    "MOMENT": "a date",
    "WORD": "a word",
    "LPAR": "(",
    "RPAR": ")",
    "LBRACE": "{",
    "RBRACE": "}",
    "COMMA": ",",
    "EQUAL": "=",
    "_AND": "and",
    "_OR": "or",
    "_NOT": "not",
    "_IN": "in",
    "DIRECTION": "asc or desc",
    "$END": "the end",
}
"""Descriptions of the tokens that the parser expected."""


@dataclass(frozen=True)
class Given:
    """A value and its position."""

    value: Value
    text: str
    column: int


@dataclass(frozen=True)
class Comparison:
    """A comparison of a field, by its dotted name, with a value, or with several for `in`."""

    field: str
    labels: tuple[tuple[str, Given], ...]
    operator: str
    values: tuple[Given, ...]
    column: int


@dataclass(frozen=True)
class Negated:
    part: "Condition"


@dataclass(frozen=True)
class Joined:
    """Conditions joined by `or` or `and`."""

    any: bool
    parts: tuple["Condition", ...]


Condition = Comparison | Negated | Joined


class Wrong(Exception):
    """A problem in a text and its position. Columns are counted from 1."""

    def __init__(self, column: int, detail: str):
        super().__init__(f"column {column}: {detail}")


@dataclass(frozen=True)
class Order:
    """A field to order by, and whether the order is descending."""

    field: str
    labels: tuple[tuple[str, Given], ...] = ()
    descending: bool = False


def parse_order(text: str) -> Order:
    """Parse an order. Raises Wrong."""
    field, *rest = _parsed(text, "order").children
    labels: tuple[tuple[str, Given], ...] = ()
    if rest and isinstance(rest[0], Tree):
        labels = _labels(rest.pop(0))
    return Order(str(field), labels, bool(rest) and str(rest[0]).lower() == "desc")


def _parsed(text: str, start: str) -> Tree[Token]:
    try:
        return _PARSER.parse(text, start=start)
    except UnexpectedInput as error:
        raise Wrong(*_told(error, text)) from None


def parse(text: str) -> Condition:
    """Parse a filter. Raises Wrong."""
    tree = _parsed(text, "start")
    conditions = [*tree.find_pred(lambda one: one.data in ("compared", "among"))]
    if len(conditions) > MAX_COMPARISONS:
        raise Wrong(1, f"at most {MAX_COMPARISONS} comparisons, not {len(conditions)}")
    lists = [one.children for one in conditions if one.data == "among"]
    values = sum(isinstance(one, Token) for parts in lists for one in parts) - len(lists)
    if values > MAX_VALUES:
        raise Wrong(1, f"at most {MAX_VALUES} values in lists, not {values}")
    return _condition(tree, MAX_DEEP)


def _told(error: UnexpectedInput, text: str) -> tuple[int, str]:
    at_end = getattr(error, "token", None) is not None and error.token.type == "$END"  # type: ignore[attr-defined]
    column = len(text) + 1 if at_end else (error.pos_in_stream or 0) + 1
    names = getattr(error, "accepts", None) or getattr(error, "expected", None) or ()
    if isinstance(error, UnexpectedCharacters):
        names = error.allowed
    listed = ", ".join(sorted(SAID.get(one, one) for one in names))
    found = "the end" if at_end else repr(text[column - 1 : column + 19].split()[0])
    cure = _cure(text, column)
    return column, f"expected {listed}, not {found}{f': {cure}' if cure else ''}"


def _cure(text: str, column: int) -> str:
    """Return advice for a text that cannot be read from a column on."""
    if text[column - 2 : column] == "==":
        return "write one ="
    words = UNQUOTED.search(text)
    if words and words.start(1) < column <= words.end(1):
        return f'quote it: "{words[1]}"'
    return ""


UNQUOTED = re.compile(
    r"[=~]\s*((?:(?!and\b|or\b)[^\s\"'=<>~(){},]+)(?:\s+(?!and\b|or\b)[^\s\"'=<>~(){},]+)+)", re.I
)
"""Several words after an operator, without quotes."""


def _condition(tree: Tree[Token], deeper: int) -> Condition:
    if deeper == 0:
        raise Wrong(_column(tree), f"and, or and not nest at most {MAX_DEEP} deep")
    match str(tree.data):
        case "negated":
            return Negated(_condition(_tree(tree.children[0]), deeper - 1))
        case "any" | "all" as how:
            parts = tuple(_condition(_tree(one), deeper - 1) for one in tree.children)
            return Joined(how == "any", parts)
    return _comparison(tree)


def _comparison(tree: Tree[Token]) -> Comparison:
    field, *rest = tree.children
    assert isinstance(field, Token)
    labels: tuple[tuple[str, Given], ...] = ()
    if isinstance(rest[0], Tree):
        labels = _labels(rest.pop(0))
    operator = "in"
    if tree.data == "compared":
        operator = str(rest.pop(0))
    values = tuple(_given(one) for one in rest)
    return Comparison(str(field), labels, operator, values, field.column or 1)


def _labels(tree: Token | Tree[Token]) -> tuple[tuple[str, Given], ...]:
    return tuple(_label(_tree(one)) for one in _tree(tree).children)


def _label(tree: Tree[Token]) -> tuple[str, Given]:
    name, value = tree.children
    return str(name), _given(value)


WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


def _given(token: Token | Tree[Token]) -> Given:
    assert isinstance(token, Token)
    text, column = str(token), token.column or 1
    match token.type:
        case "NUMBER":
            if not math.isfinite(number := float(text)):
                raise Wrong(column, f"{text} is too large for a number")
            return Given(number, text, column)
        case "STRING":
            return Given(text[1:-1], text[1:-1], column)
        case "WORD" if text.lower() in WORDS:
            return Given(WORDS[text.lower()], text, column)
    return Given(text, text, column)


def _tree(one: Token | Tree[Token]) -> Tree[Token]:
    assert isinstance(one, Tree)
    return one


def _column(tree: Tree[Token]) -> int:
    tokens: Sequence[Token] = [*tree.scan_values(lambda one: isinstance(one, Token))]
    return tokens[0].column or 1

"""SQL on stored JSON for both databases, with bound parameters. Equality can use PostgreSQL's
index."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    String,
    Text,
    and_,
    bindparam,
    cast,
    false,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, JSONPATH
from sqlalchemy.orm import Session

from service.experiments.filters.grammar import Value
from service.tables.engine import storable
from service.tables.experiments import SMALL_SPEC, Experiment

Clause = ColumnElement[bool]
_IS_SMALL = Experiment.spec_bytes <= literal(SMALL_SPEC, literal_execute=True)


def _far(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def _bound_json(value: Any) -> ColumnElement[Any]:
    return cast(bindparam(None, json.dumps(storable(value)), type_=String()), JSONB)


def tag_is(session: Session, *tags: str) -> Clause:
    """Return whether a tag is one of these. SQLite parses the stored tags once for all of them."""
    if _far(session):
        contains = cast(Experiment.tags, JSONB).op("@>", is_comparison=True)
        return or_(*(contains(_bound_json([tag])) for tag in tags))
    each = func.json_each(Experiment.tags).table_valued("value")
    return select(literal(1)).select_from(each).where(each.c.value.in_(tags)).exists()


def a_tag_contains(word: str) -> Clause:
    """Return whether a tag contains a word. It is compared with the stored text of the list, which
    takes a tenth of the time of parsing it. A word with only punctuation could match the
    punctuation of the list."""
    if not any(letter.isalnum() for letter in word):
        return false()
    escaped = json.dumps(storable(word))[1:-1]
    return cast(Experiment.tags, String).icontains(escaped, autoescape=True)


def is_label(session: Session, metric: Any, label: str, value: str) -> Clause:
    """Compare a label as text. `label` must be an existing name."""
    found: ColumnElement[Any]
    if _far(session):
        found = cast(metric.labels, JSONB).op("->>")(label)
    else:
        found = func.json_extract(metric.labels, f"$.{label}")
    return func.coalesce(cast(found, String), "") == value


def spec_compares(session: Session, path: str, operator: str, value: Value) -> Clause:
    """Return whether a spec field, or an item of a list, compares with a value of its type. `path`
    must be a path of a spec."""
    if not _far(session):
        return _in_sqlite(path, operator, value)
    spec = cast(Experiment.spec, JSONB)
    if operator == "=":
        scalar: Any = value
        inner: Any = scalar
        listed: Any = [scalar]
        for name in reversed(path.split(".")):
            inner, listed = {name: inner}, {name: listed}
        contains = spec.op("@>", is_comparison=True)
        either = contains(_bound_json(inner)), contains(_bound_json(listed))
        # The index has the small specs: written like this, the others are looked for beside it.
        # Of these only the field is parsed. A list contains its items.
        names = literal(path.split("."), ARRAY(Text))
        field = cast(Experiment.spec.op("#>")(names), JSONB)
        of_large = func.coalesce(field.op("@>", is_comparison=True)(_bound_json(value)), false())
        return or_(*(_IS_SMALL & one for one in either), ~_IS_SMALL & of_large)
    where = cast(literal(f"$.{path} ? (@ {operator} $given)"), JSONPATH)
    return func.jsonb_path_exists(spec, where, _bound_json({"given": value}))


KINDS = {float: ("integer", "real"), str: ("text",), type(None): ("null",)}
"""SQLite's names of the types."""


def spec_is_one_of(session: Session, path: str, values: Sequence[Value]) -> Clause:
    """Return whether a spec field, or an item of a list, equals one of these values. SQLite parses
    the whole spec for each look, so it looks once for all values."""
    if _far(session):
        return or_(*(spec_compares(session, path, "=", value) for value in values))
    each = _each(path)
    return _exists(each, or_(*(_matches(each, "=", value) for value in values)))


def _in_sqlite(path: str, operator: str, value: Value) -> Clause:
    each = _each(path)
    return _exists(each, _matches(each, operator, value))


def _each(path: str) -> Any:
    return func.json_each(Experiment.spec, f"$.{path}").table_valued("value", "type")


def _exists(each: Any, condition: Clause) -> Clause:
    return select(literal(1)).select_from(each).where(condition).exists()


def _matches(each: Any, operator: str, value: Value) -> Clause:
    if isinstance(value, bool):
        conditions: list[Any] = [each.c.type == str(value).lower()]
    else:
        conditions = [each.c.type.in_(KINDS[type(value)])]
    if isinstance(value, str | float):
        compare = each.c.value.op(operator, is_comparison=True)
        conditions.append(compare(value))
    return and_(*conditions)

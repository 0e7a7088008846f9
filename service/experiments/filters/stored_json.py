"""SQL on stored JSON for both databases, with bound parameters. Equality can use PostgreSQL's
index."""

import json
from collections.abc import Iterator, Sequence
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

from service.db.engine import storable
from service.experiments.filters.grammar import Value
from service.experiments.models import SMALL_SPEC, Experiment

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
    if operator == "=":
        return spec_is_one_of(session, path, [value])
    if _far(session):
        return _field_is(path, f"{operator} $given", value)
    return _in_sqlite(path, operator, value)


def _contains(path: str, value: Value) -> Iterator[Clause]:
    """Yield whether a spec contains a value at a path, and as an item of a list. These use the
    index."""
    contains = cast(Experiment.spec, JSONB).op("@>", is_comparison=True)
    inner: Any
    for inner in (value, [value]):
        for name in reversed(path.split(".")):
            inner = {name: inner}
        yield contains(_bound_json(inner))


def _field_is(path: str, condition: str, given: Any) -> Clause:
    """Return whether a field, or an item of a list, fulfils a condition on `$given`. Only the field
    is parsed, not the spec. A field that is missing fulfils none."""
    field = cast(Experiment.spec.op("#>")(literal(path.split("."), ARRAY(Text))), JSONB)
    where = cast(literal(f"$ ? (@ {condition})"), JSONPATH)
    exists = func.jsonb_path_exists(field, where, _bound_json({"given": given}))
    return func.coalesce(exists, false())


KINDS = {float: ("integer", "real"), str: ("text",), type(None): ("null",)}
"""SQLite's names of the types."""


def spec_is_one_of(session: Session, path: str, values: Sequence[Value]) -> Clause:
    """Return whether a spec field, or an item of a list, equals one of these values. SQLite parses
    the whole spec for each look, so it looks once for all values."""
    if _far(session):
        # The index has the small specs: written like this, the others are looked for beside it.
        small = (_IS_SMALL & one for value in values for one in _contains(path, value))
        return or_(*small, ~_IS_SMALL & _field_is(path, "== $given[*]", list(values)))
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

"""Columns behind the fields of a filter, and how they are compared."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, and_, func, not_, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from mptcore.protocol.metrics import INTERIM
from mptcore.protocol.records import LABELS
from mptcore.specs import ExperimentSpec, known_families
from mptcore.specs.parsing.suggestions import meant
from service.accounts.models import OWN, Project, User
from service.experiments.filters.grammar import Comparison, Condition, Given, Joined, Negated, Wrong
from service.experiments.filters.stored_json import (
    is_label,
    spec_compares,
    spec_is_one_of,
    tag_is,
)
from service.experiments.models import Device, Experiment, Metric
from service.records.results import is_final
from service.vocabulary import Status, Visibility

Clause = ColumnElement[bool]
Labels = tuple[tuple[str, Given], ...]
ORDERS: dict[str, Callable[[Any, Any], Any]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


_DEEPEST = 12
"""Maximum number of references and unions on the way to a field."""


def _paths(schema: dict[str, Any], node: dict[str, Any], path: str, left: int) -> Iterator[str]:
    if left == 0:
        return
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for union in ("anyOf", "oneOf", "allOf"):
        for part in node.get(union, ()):
            yield from _paths(schema, part, path, left - 1)
    for name, part in node.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        yield inner
        yield from _paths(schema, part, inner, left - 1)


_SCHEMA = TypeAdapter(ExperimentSpec).json_schema()
SPEC_PATHS = frozenset(_paths(_SCHEMA, _SCHEMA, "", _DEEPEST))
FAMILIES = tuple(sorted(known_families()))


@dataclass(frozen=True)
class Field:
    """A column of experiments. `kind` is text, number, time or bool, or the enum of its values."""

    column: InstrumentedAttribute[Any]
    kind: str | type[StrEnum] | tuple[str, ...] = "text"
    nullable: bool = False


FIELDS = {
    "id": Field(Experiment.id),
    "name": Field(Experiment.name, nullable=True),
    "note": Field(Experiment.note, nullable=True),
    "status": Field(Experiment.status, Status),
    "family": Field(Experiment.family, FAMILIES),
    "device": Field(Experiment.device, Device),
    "visibility": Field(Experiment.visibility, Visibility),
    "failure": Field(Experiment.failure_kind, nullable=True),
    "retry_of": Field(Experiment.retry_of, nullable=True),
    "sweep": Field(Experiment.sweep_id, nullable=True),
    "priority": Field(Experiment.priority, "number"),
    "pinned": Field(Experiment.pinned, "bool"),
    "created": Field(Experiment.created_at, "time"),
    "started": Field(Experiment.started_at, "time", nullable=True),
    "finished": Field(Experiment.finished_at, "time", nullable=True),
}
OTHERS = ("owner", "project", "tag", "metrics.NAME", "spec.PATH")


def clause(session: Session, condition: Condition) -> Clause:
    """Compile a condition to SQL that is true or false for an experiment, never null. Raises
    Wrong."""
    match condition:
        case Negated():
            return not_(clause(session, condition.part))
        case Joined():
            parts = [clause(session, part) for part in condition.parts]
            return or_(*parts) if condition.any else and_(*parts)
        case Comparison():
            return _compared(session, condition)


def _compared(session: Session, one: Comparison) -> Clause:
    kind, _, rest = one.field.partition(".")
    if one.labels and kind != "metrics":
        raise Wrong(one.column, f"{one.field} has no labels: only metrics have")
    if one.operator == "in" and kind == "spec" and rest in SPEC_PATHS:
        return spec_is_one_of(session, rest, [value.value for value in one.values])
    if one.operator == "in":
        parts = [
            _compared(session, Comparison(one.field, one.labels, "=", (value,), one.column))
            for value in one.values
        ]
        return or_(*parts)
    (value,) = one.values
    if one.field == "family":
        known = families_with(session, value.text)
        return _of_column(replace(FIELDS["family"], kind=known), one, value)
    if one.field in FIELDS:
        return _of_column(FIELDS[one.field], one, value)
    if one.field in ("owner", "tag"):
        _only(one, "=", "!=")
        is_owner = one.field == "owner"
        found = (
            Experiment.owner_id == owner_id(value.text) if is_owner else tag_is(session, value.text)
        )
        return not_(found) if one.operator == "!=" else found
    if one.field == "project":
        _only(one, "=", "!=")
        in_project: Clause = Experiment.project_id == _project_id(value)
        return not_(in_project) if one.operator == "!=" else in_project
    if kind == "metrics" and rest:
        return _of_metric(session, rest, one, value)
    if kind == "spec" and rest:
        return _of_spec(session, rest, one, value)
    if near := metric_meant(session, one.field):
        raise Wrong(one.column, f"there is no field {one.field}: {near.strip()}")
    raise Wrong(one.column, unknown("field", one.field, [*FIELDS, *OTHERS]))


def families_with(session: Session, family: str) -> tuple[str, ...]:
    """Return the families that a filter may name: those of this process, and the given one if an
    experiment of it is stored, because its package may be gone."""
    if family in FAMILIES:
        return FAMILIES
    stored = select(Experiment.id).where(Experiment.family == family).limit(1)
    return FAMILIES if session.scalar(stored) is None else (*FAMILIES, family)


def metric_meant(session: Session, name: str) -> str:
    """Return a question with the full name of a metric, and a space, if there is one."""
    return f"did you mean metrics.{name}? " if _is_metric(session, name) else ""


def unknown(what: str, given: str, known: Sequence[str]) -> str:
    return f"there is no {what} {given}: {meant(given, known)}there are {', '.join(known)}"


def _of_column(field: Field, one: Comparison, value: Given) -> Clause:
    if value.value is None:
        return _of_null(field, one)
    if one.operator == "~":
        if field.kind != "text":
            raise Wrong(one.column, f"~ is for text, which {one.field} is not")
        found: Clause = field.column.icontains(value.text, autoescape=True)
    elif one.operator in ORDERS:
        if field.kind not in ("number", "time", "text"):
            raise Wrong(one.column, f"{one.field} has no order: use = != in")
        found = ORDERS[one.operator](field.column, _value(field, one.field, value))
    else:
        found = field.column == _value(field, one.field, value)
    if field.nullable:
        found = and_(field.column.is_not(None), found)
    return not_(found) if one.operator == "!=" else found


def _of_null(field: Field, one: Comparison) -> Clause:
    if not field.nullable or one.operator not in ("=", "!="):
        raise Wrong(one.column, f"{one.field} {one.operator} null is never true: use = or !=")
    column = field.column
    return column.is_(None) if one.operator == "=" else column.is_not(None)


def _value(field: Field, name: str, given: Given) -> Any:
    match field.kind:
        case "text":
            return given.text
        case "number":
            return number(name, given)
        case "time":
            return moment(name, given)
        case "bool":
            if not isinstance(given.value, bool):
                raise Wrong(given.column, f"{name} is true or false, not {given.text}")
            return given.value
    known = [str(one) for one in field.kind]
    if given.text not in known:
        raise Wrong(given.column, unknown(f"{name}", given.text, known))
    return given.text


def number(name: str, given: Given) -> float:
    if isinstance(given.value, float):
        return given.value
    raise Wrong(given.column, f"{name} is a number, not {given.text}")


def moment(name: str, given: Given) -> float:
    """Parse a time as seconds since 1970. Without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(given.text)
        return found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        detail = f"{name} is a date as 2026-01-31 or 2026-01-31T12:00:00Z, not {given.text}"
        raise Wrong(given.column, detail) from None


def _only(one: Comparison, *operators: str) -> None:
    if one.operator not in operators:
        raise Wrong(one.column, f"{one.field} allows {' '.join(operators)} in, not {one.operator}")


def owner_id(name: str) -> Any:
    """Return the id of the named user, or -1 if there is none. So a caller cannot find out whether
    a user exists."""
    found = select(User.id).where(User.name == name).scalar_subquery()
    return func.coalesce(found, -1)


def _project_id(name: Given) -> Any:
    """Return the id of the named project, OWN for null, or -1 if there is none, as of an owner."""
    if name.value is None:
        return OWN
    found = select(Project.id).where(Project.name == name.text).scalar_subquery()
    return func.coalesce(found, -1)


def _of_metric(session: Session, name: str, one: Comparison, value: Given) -> Clause:
    recorded = aliased(Metric)  # the list may be ordered by a metric, too
    conditions = [recorded.experiment_id == Experiment.id]
    conditions += metric_is(session, recorded, name, one.labels, one.column)
    if value.value is None:
        _only(one, "=", "!=")
        missing = one.operator == "="
        conditions.append(recorded.value.is_(None) if missing else recorded.value.is_not(None))
    else:
        wanted = number(one.field, value)
        _only(one, "=", "!=", *ORDERS)
        compare = {**ORDERS, "=": eq, "!=": ne}[one.operator]
        conditions.append(compare(recorded.value, wanted))
    return select(recorded.name).where(*conditions).exists()


def metric_is(
    session: Session, metric: Any, name: str, labels: Labels, column: int
) -> list[ColumnElement[bool]]:
    """Return the clauses that match a metric with this name and at least these labels: a final one,
    unless a label of `train.curve_at` is given. Raises Wrong."""
    check_metric(session, name, column)
    for label, given in labels:
        if label not in LABELS:
            raise Wrong(given.column, unknown("label", label, [*LABELS]))
    of_labels = [is_label(session, metric, label, given.text) for label, given in labels]
    is_interim = any(label in INTERIM for label, _ in labels)
    return [metric.name == name, *of_labels, *([] if is_interim else is_final(metric))]


MAX_NAMED = 50


def check_metric(session: Session, name: str, column: int) -> None:
    """Raises Wrong if there are metrics but none with this name."""
    if _is_metric(session, name):
        return
    known = [*islice(_metric_names(session), MAX_NAMED)]
    if known:
        raise Wrong(column, unknown("metric", name, known))


def _is_metric(session: Session, name: str) -> bool:
    found = select(Metric.seq).where(Metric.name == name).exists()
    return session.scalar(select(true()).where(found)) is not None


def _metric_names(session: Session) -> Iterator[str]:
    """Yield the names of metrics in order. Each is one index look-up; DISTINCT would read all
    metrics."""
    name = session.scalar(select(func.min(Metric.name)))
    while name is not None:
        yield name
        name = session.scalar(select(func.min(Metric.name)).where(Metric.name > name))


def _of_spec(session: Session, path: str, one: Comparison, value: Given) -> Clause:
    if path not in SPEC_PATHS:
        group = path.rpartition(".")[0]
        beside = sorted(p for p in SPEC_PATHS if p.rpartition(".")[0] == group) or ["model", "data"]
        near = meant(path, SPEC_PATHS, "spec.")
        detail = f"there is no field {path} of a spec: {near}beside it are {', '.join(beside)}"
        raise Wrong(one.column, detail)
    if one.operator in ORDERS:
        number(one.field, value)
    else:
        _only(one, "=", "!=", *ORDERS)
    found = spec_compares(session, path, "=" if one.operator == "!=" else one.operator, value.value)
    return not_(found) if one.operator == "!=" else found

"""Pages of experiments: filtered, ordered, continued after the last page."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, or_, select, tuple_
from sqlalchemy.orm import Session, aliased, defer, joinedload
from sqlalchemy.orm.attributes import set_committed_value

from mptcore.specs import Problem
from mptcore.specs.parsing.suggestions import meant
from service.db.visibility import listed
from service.experiments.filters.fields import (
    clause,
    families_with,
    metric_is,
    metric_meant,
    owner_id,
    unknown,
)
from service.experiments.filters.grammar import Order, Wrong, parse, parse_order
from service.experiments.filters.stored_json import a_tag_contains, tag_is
from service.experiments.models import Experiment, Metric
from service.refusals import ApiError, invalid
from service.sweeps.models import Sweep
from service.vocabulary import Status, Whose

Clause = ColumnElement[bool]

TEXTS = (
    Experiment.tags,
    Experiment.note,
    Experiment.comes_after,
    Experiment.failure_message,
)
"""Columns that may be large, as specs are. A page is read without them."""
ROWS_AT_ONCE = 20
"""Number of rows with texts that are converted at once. No other thread runs meanwhile."""


@dataclass(frozen=True)
class Wanted:
    """Filters and order of a list. If a filter has several values, any of them matches."""

    whose: Whose = Whose.MINE
    status: Sequence[Status] = ()
    owner: str | None = None
    tag: Sequence[str] = ()
    name: str | None = None
    family: Sequence[str] = ()
    q: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    filter: str | None = None
    order_by: str = "created desc"


@dataclass(frozen=True)
class Page:
    items: Sequence[Experiment]
    next_cursor: str | None = None
    places: Sequence[Any] = ()
    """Values of the field that the items are ordered by."""

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.items]

    def first(self, count: int, wanted: Wanted) -> "Page":
        """Return a page of fewer of these items, and at least one."""
        items, places = self.items[:count], self.places[:count]
        return Page(items, _cursor(wanted, places[-1], items[-1].id), places)


def page_of(
    session: Session,
    user_id: int,
    wanted: Wanted,
    *,
    limit: int,
    cursor: str | None = None,
    folded: bool = False,
) -> Page:
    """Return a page of the user's experiments, those shared with the user's projects or the lab, or
    all. If they are ordered by a field, only experiments with this field are listed. If they are
    `folded`, the newest of the wanted experiments of a sweep stands for all of them. They have no
    texts and specs until `load_texts` is called. Raises ApiError."""
    order = _at("order_by", lambda: parse_order(wanted.order_by))
    query, key = _at("order_by", lambda: _ordered(session, order))
    conditions = clauses(session, user_id, wanted)
    query = query.where(*conditions)
    if folded:
        if order.field != "created":
            raise invalid([Problem("/query/folded", "only with order_by=created")])
        query = query.where(or_(Experiment.sweep_id.is_(None), _is_newest_of_sweep(conditions)))
    place = tuple_(key, Experiment.id)
    if cursor:
        last = tuple_(*_read(cursor, wanted, order))
        query = query.where(place < last if order.descending else place > last)
    columns = (key, Experiment.id)
    query = query.order_by(*(one.desc() if order.descending else one for one in columns))
    large = (defer(column, raiseload=True) for column in (*TEXTS, Experiment.spec))
    query = query.options(joinedload(Experiment.owner), *large)
    found = session.execute(query.limit(limit + 1)).all()
    return _page(found, limit, wanted)


def _is_newest_of_sweep(conditions: Sequence[Clause]) -> Clause:
    newest = select(func.max(Experiment.id)).where(*conditions, Experiment.sweep_id.is_not(None))
    return Experiment.id.in_(newest.group_by(Experiment.sweep_id).correlate(None))


MAX_SWEEPS = 50
"""Maximum number of sweeps without experiments of their own on a page."""


def sweeps_of_page(
    session: Session, user_id: int, wanted: Wanted, found: Page, cursor: str | None
) -> list[str]:
    """Return the sweeps of a folded page: those of its items and, if the list is not filtered,
    those that were created in its time and of which no point needed a new experiment."""
    ids = [one.sweep_id for one in found.items if one.sweep_id]
    if any(value for name, value in asdict(wanted).items() if name not in ("whose", "order_by")):
        return ids
    order = parse_order(wanted.order_by)
    created = Sweep.created_at
    has_own = select(Experiment.id).where(Experiment.sweep_id == Sweep.id).exists()
    query = select(Sweep.id).where(listed(Sweep, user_id, wanted.whose), ~has_own)
    if cursor:
        place, _ = _read(cursor, wanted, order)
        query = query.where(created < place if order.descending else created > place)
    if found.next_cursor:
        place = found.places[-1]
        query = query.where(created >= place if order.descending else created <= place)
    query = query.order_by(created.desc() if order.descending else created)
    return [*ids, *session.scalars(query.limit(MAX_SWEEPS))]


def load_texts(
    session: Session,
    found: Sequence[Experiment],
    *,
    with_spec: bool = False,
) -> list[Experiment]:
    """Load the texts of a page's experiments and, if requested, their specs. Return the experiments
    without those that were deleted meanwhile."""
    columns = (*TEXTS, Experiment.spec) if with_spec else TEXTS
    by_id = {one.id: one for one in found}
    query = select(Experiment.id, *columns).where(Experiment.id.in_(by_id))
    loaded = set()
    for rows in session.execute(query).partitions(ROWS_AT_ONCE):
        for id_, *values in rows:
            loaded.add(id_)
            for column, value in zip(columns, values, strict=True):
                set_committed_value(by_id[id_], column.key, value)
    return [one for one in found if one.id in loaded]


def _page(found: Sequence[Row[*tuple[Any, ...]]], limit: int, wanted: Wanted) -> Page:
    page = Page([experiment for experiment, _ in found], None, [place for _, place in found])
    return page if len(found) <= limit else page.first(limit, wanted)


def _at(parameter: str, work: Any) -> Any:
    """Attribute a problem in a query's text to its parameter."""
    try:
        return work()
    except Wrong as error:
        raise invalid([Problem(f"/query/{parameter}", str(error))]) from None


COLUMNS = {
    "created": Experiment.created_at,
    "finished": Experiment.finished_at,
    "name": Experiment.name,
}


def _ordered(session: Session, order: Order) -> tuple[Select[Any, Any], Any]:
    """Return a query and the expression it is ordered by. Raises Wrong."""
    kind, _, name = order.field.partition(".")
    if kind == "metrics" and name:
        return _by_metric(session, order, name)
    if order.field not in COLUMNS or order.labels:
        known = f"{', '.join(COLUMNS)}, metrics.NAME"
        near = metric_meant(session, order.field) or meant(order.field, COLUMNS)
        raise Wrong(1, f"there is no order by {order.field}: {near}there are {known}, asc or desc")
    column = COLUMNS[order.field]
    query = select(Experiment, column.label("place"))
    return (query if order.field == "created" else query.where(column.is_not(None))), column


def _by_metric(session: Session, order: Order, name: str) -> tuple[Select[Any, Any], Any]:
    """Order by a metric. If an experiment has several such metrics, the first in the order
    counts."""
    earlier = aliased(Metric)
    before = (earlier.value, earlier.labels), (Metric.value, Metric.labels)
    first, second = (tuple_(*one) for one in before)
    comes_before = first > second if order.descending else first < second
    better = select(earlier.seq).where(
        earlier.experiment_id == Metric.experiment_id,
        *metric_is(session, earlier, name, order.labels, 1),
        comes_before,
    )
    query = (
        select(Experiment, Metric.value.label("place"))
        .join(Metric, Metric.experiment_id == Experiment.id)
        .where(
            *metric_is(session, Metric, name, order.labels, 1),
            Metric.value.is_not(None),
            ~better.exists(),
        )
    )
    return query, Metric.value


def clauses(session: Session, user_id: int, wanted: Wanted) -> list[Clause]:
    """Return the conditions of a user's list. Raises ApiError."""
    found: list[Clause] = [listed(Experiment, user_id, wanted.whose)]
    if wanted.owner is not None:
        found.append(Experiment.owner_id == owner_id(wanted.owner))
    if wanted.status:
        found.append(Experiment.status.in_(wanted.status))
    if wanted.family:
        for family in wanted.family:
            if family not in (known := families_with(session, family)):
                raise invalid([Problem("/query/family", unknown("family", family, known))])
        found.append(Experiment.family.in_(wanted.family))
    if wanted.name is not None:
        found.append(Experiment.name == wanted.name)
    if wanted.tag:
        found.append(tag_is(session, *wanted.tag))
    found += _in_time(wanted)
    found += [_has_word(word) for word in (wanted.q or "").split()]
    if wanted.filter is not None:
        text = wanted.filter
        found.append(_at("filter", lambda: clause(session, parse(text))))
    return found


def _in_time(wanted: Wanted) -> list[Clause]:
    """Return clauses for `after` (inclusive) and `before` (exclusive)."""
    created, finished = Experiment.created_at, Experiment.finished_at
    bounds = [
        (wanted.created_after, created.__ge__),
        (wanted.created_before, created.__lt__),
        (wanted.finished_after, finished.__ge__),
        (wanted.finished_before, finished.__lt__),
    ]
    return [compare(_seconds(moment)) for moment, compare in bounds if moment is not None]


def _seconds(moment: datetime) -> float:
    """Return seconds since 1970. Without a time zone it is UTC."""
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _has_word(word: str) -> Clause:
    columns = (Experiment.name, Experiment.note, Experiment.id)
    inside = [column.icontains(word, autoescape=True) for column in columns]
    return or_(*inside, a_tag_contains(word))


def _digest(wanted: Wanted) -> str:
    text = json.dumps(asdict(wanted), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _cursor(wanted: Wanted, key: Any, experiment_id: str) -> str:
    text = json.dumps([_digest(wanted), key, experiment_id])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read(cursor: str, wanted: Wanted, order: Order) -> tuple[str | float, str]:
    """Return the position at which the last page ended. Raises ApiError."""
    try:
        text = base64.urlsafe_b64decode(cursor + "==").decode()
        digest, key, experiment_id = json.loads(text)
        place = str(key) if order.field == "name" else float(key)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise _no_cursor("a cursor is the next_cursor of an earlier answer") from None
    if digest != _digest(wanted):
        raise _no_cursor("this cursor belongs to a list with other filters or in another order")
    return place, str(experiment_id)


def _no_cursor(detail: str) -> ApiError:
    return invalid([Problem("/query/cursor", detail)])

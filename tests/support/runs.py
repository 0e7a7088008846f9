"""Running specs, parts of runs, and reading their records."""

import json
from typing import Any, TypeVar

from mptcore.protocol.records import Metric, Point, Record
from mptcore.runtime.state import Records
from mptcore.specs import ExperimentSpec, parse_spec

Result = TypeVar("Result")


def spec_of(value: dict[str, Any]) -> ExperimentSpec:
    return parse_spec(json.dumps(value).encode())


def result_of(work: Records[Result]) -> Result:
    """Return the result of a generator after its last step."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def records_of(work: Records[None]) -> list[Record]:
    """The records that some work gives."""
    return [record for record in work if record is not None]


def value_of(record: Metric | Point) -> float:
    """Its value, which is there: null is above any log likelihood, and 0 none."""
    assert record.value is not None, record
    return record.value


def std_err_of(record: Metric | Point) -> float:
    """Its standard error, which is there."""
    assert record.std_err is not None, record
    return record.std_err


def points(found: list[Record], series: str) -> list[Point]:
    return [r for r in found if isinstance(r, Point) and r.series == series]


def metric(found: list[Record], name: str, **labels: Any) -> Metric:
    """The one metric of a name with these labels among its own."""
    (one,) = (
        r
        for r in found
        if isinstance(r, Metric) and r.name == name and labels.items() <= dict(r.labels).items()
    )
    return one

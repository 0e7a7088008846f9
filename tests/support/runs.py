"""Running specs, parts of runs, and reading their records."""

import json
from pathlib import Path
from typing import Any, TypeVar

from mptcore.protocol.records import Metric, Point, Progress, Record, encode
from mptcore.run import resumable
from mptcore.runtime.checkpoint import Snapshot, files, first_whole
from mptcore.runtime.state import RunState, Work
from mptcore.specs import ExperimentSpec, parse_spec

Result = TypeVar("Result")


def spec_of(value: dict[str, Any]) -> ExperimentSpec:
    return parse_spec(json.dumps(value).encode())


def records(spec: ExperimentSpec, folder: Path, stop_after: int | None = None) -> list[str]:
    """The lines of a run that resumes from a folder, or up to the first safe point after some
    records, where it is saved there."""
    state = RunState(work_dir=folder / "work")
    found = first_whole(spec, files(folder))
    given = 0
    if found is not None:
        state.scores, given = found.scores, found.after
    lines = []
    training = found.training if found else None
    for record in resumable(spec, state, training):
        if record is not None and not isinstance(record, Progress):
            state.seq += 1
            if state.seq > given:
                lines.append(encode(state.seq, record))
        if stop_after is not None and state.at_safe_point and state.seq >= max(stop_after, given):
            Snapshot.of(state, spec).save(folder)
            return lines
    return lines


def result_of(work: Work[Result]) -> Result:
    """Return the result of a generator after its last step."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def records_of(work: Work[None]) -> list[Record]:
    """The records that some work gives."""
    return [step.record for step in work if step.record is not None]


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

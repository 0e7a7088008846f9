"""Records as lines of JSON."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcore.protocol.records import (
    LABELS,
    Artifact,
    Labels,
    Log,
    Metric,
    Point,
    Progress,
    Record,
    RunError,
    Stage,
    encode,
    point_encoder,
)

POINT = {"seq": 3, "record": "point", "series": "score", "x": 1, "value": -1.5, "std_err": None,
         "n": 2, "labels": {}}  # fmt: skip
STAGE = Stage("training", 2, 9, "epochs")


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (Point("score", 1.0, -1.5, None, 2), POINT),
        (Point("score", 0.15, -1.5, None, 2), {**POINT, "x": 0.15}),
        (Point("score", 1, -1.5, None, 2, reason="one mask"), {**POINT, "reason": "one mask"}),
        (Metric("lml", 1, 0), {"seq": 3, "record": "metric", "name": "lml", "value": 1.0,
                               "std_err": 0.0, "labels": {}}),
        (Progress(1, 9, "masks"),
         {"seq": 3, "record": "progress", "done": 1, "total": 9, "unit": "masks"}),
        (Progress(1, 9, "masks", STAGE),
         {"seq": 3, "record": "progress", "done": 1, "total": 9, "unit": "masks",
          "stage": {"name": "training", "done": 2, "total": 9, "unit": "epochs"}}),
        (Log("info", "a"), {"seq": 3, "record": "log", "level": "info", "message": "a"}),
        (Artifact("a", "b", "c"),
         {"seq": 3, "record": "artifact", "file": "a", "media_type": "b", "sha256": "c"}),
    ],
)  # fmt: skip
def test_a_record_is_one_line(record: Record, line: dict[str, Any]) -> None:
    assert json.loads(encode(3, record)) == line
    assert "\n" not in encode(3, record)
    assert json.loads(encode(None, record)) == {**line, "seq": None}


NUMBER = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**6),
    st.tuples(NUMBER, NUMBER),
    st.integers(0, 2**53),
    st.dictionaries(st.sampled_from(LABELS), st.integers() | st.text(max_size=9)),
    st.none() | st.text(max_size=9),
)
def test_stored_points_are_encoded_as_the_run_did(
    x: float,
    numbers: tuple[float | None, float | None],
    n: int,
    labels: Labels,
    reason: str | None,
) -> None:
    value, std_err = (math.nan if one is None else one for one in numbers)
    line = point_encoder("score", labels)(7, float(x), value, std_err, float(n), reason)
    assert line == encode(7, Point("score", x, *numbers, n, labels, reason))


def test_equal_records_give_equal_lines() -> None:
    """The order of labels does not matter, nor the type of whole numbers."""
    first = Point("score", 2, 1, 0, 2, {"seed": 4, "model": "a"})
    assert encode(1, first) == encode(
        1, Point("score", 2.0, 1.0, 0.0, 2, {"model": "a", "seed": 4})
    )
    assert encode(1, Metric("a", 1, 2, {"seed": 4, "of": "b"})) == encode(
        1, Metric("a", 1.0, 2.0, {"of": "b", "seed": 4})
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_null_with_a_reason(value: float) -> None:
    point = json.loads(encode(3, Point("score", 1, value, 0.5, 2)))
    assert (point["value"], point["std_err"], point["reason"]) == (None, 0.5, f"value is {value}")
    metric = json.loads(encode(3, Metric("lml", 1.0, value)))
    assert (metric["value"], metric["std_err"]) == (1.0, None)
    assert metric["reason"] == f"std_err is {value}"
    both = json.loads(encode(3, Metric("lml", value, value)))
    assert (both["value"], both["std_err"], both["reason"]) == (None, None, f"value is {value}")
    error = json.loads(encode(3, Metric("lml", None, value)))
    assert (error["std_err"], error["reason"]) == (None, f"std_err is {value}")
    with pytest.raises(ValueError, match="JSON compliant"):
        encode(3, Point("score", value, 1.0, None, 2))
    given = json.loads(encode(3, Metric("lml", value, None, reason="its own")))
    assert given["reason"] == "its own"


def test_a_failed_run_has_a_cause_and_a_message() -> None:
    error = RunError("oom", "no memory")
    assert (error.cause, str(error)) == ("oom", "no memory")

"""Curves in each format: the same points, and the facts that a reader needs with them."""

import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from service.curves import formats as curve_formats
from service.curves.formats import Answer, Format, written
from service.db.engine import Database
from service.experiments.models import Experiment
from service.queue import lease
from service.records.curves import Curve
from service.records.recording import COLUMNS, Batch, record
from service.records.schemas import CurvesOut
from service.refusals import ApiError
from service.vocabulary import Status
from tests.support.attempts import claimed


def point(seq: int, series: str = "score", **labels: Any) -> dict[str, Any]:
    missing = seq == 3
    return {"seq": seq, "record": "point", "series": series, "labels": labels, "x": seq / 10,
            "value": None if missing else -seq, "std_err": None if missing else 0.25, "n": 7,
            **({"reason": '@a "bad", draw'} if missing else {})}  # fmt: skip


POINTS = [
    *(point(i, seed=4) for i in range(1, 6)),
    *(point(i, "loss", seed=5, model="=a,b") for i in range(6, 9)),
]


@pytest.fixture
def path(database: Database) -> str:
    """Path of the curves of a finished run."""
    claim = claimed(database)
    batch = Batch()
    for one in POINTS:
        batch.add(dict(one))
    with database.transaction() as session:
        record(session, claim, batch, 60)
        lease.finish(session, claim, Status.SUCCEEDED)
    return f"/v1/experiments/{claim.experiment_id}/curves"


ROWS = [
    {"series": one["series"], "seed": one["labels"]["seed"], "model": one["labels"].get("model"),
     **{name: one[name] for name in ("x", "value", "std_err", "n")},
     "reason": one.get("reason")}
    for one in POINTS
]  # fmt: skip


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (
        frame.astype(object).where(frame.notna(), None).to_dict("records")
    )
    return listed


def test_json(api: TestClient, path: str) -> None:
    answer = api.get(path)
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    CurvesOut.model_validate_json(answer.content, strict=True, extra="forbid")
    score, loss = document["series"]
    assert score["value"] == [-1, -2, None, -4, -5]
    assert score["reasons"] == [None, None, '@a "bad", draw', None, None]
    assert loss["labels"] == {"seed": 5, "model": "=a,b"}
    assert loss["reasons"] is None
    assert document["last_seq"] == 8
    assert (document["total_points"], document["sampled"], document["partial"]) == (8, False, False)


def test_csv(api: TestClient, path: str) -> None:
    answer = api.get(path, params={"format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    as_text = {"=a,b": "'=a,b", '@a "bad", draw': '\'@a "bad", draw'}  # no formulas
    assert rows(pd.read_csv(io.BytesIO(answer.content))) == [
        {name: as_text.get(str(value), value) for name, value in one.items()} for one in ROWS
    ]
    assert said(answer.headers) == (False, False, 8, 8)


def test_arrow(api: TestClient, path: str) -> None:
    answer = api.get(path, params={"format": "arrow"})
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.to_pylist() == ROWS
    assert said(answer.headers) == (False, False, 8, 8)
    about = json.loads(table.schema.metadata[b"mptlab"])
    document = api.get(path).json()
    for series in document["series"]:
        for column in ("x", "value", "std_err", "n", "reasons"):
            del series[column]
    assert about == document


def said(headers: Any) -> tuple[Any, ...]:
    names = ("MPT-Partial", "MPT-Sampled", "MPT-Total-Points", "MPT-Last-Seq")
    return tuple(json.loads(headers[name]) for name in names)


@pytest.mark.parametrize("form", ["csv", "arrow"])
def test_downsampled_and_empty_curves(api: TestClient, path: str, form: str) -> None:
    thin = api.get(path, params={"format": form, "max_points": 4})
    assert said(thin.headers) == (False, True, 8, 8)
    empty = api.get(path, params={"format": form, "after": 8})
    assert empty.status_code == 200
    assert said(empty.headers) == (False, False, 0, 8)


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "application/json"),
        ("text/html, text/csv;q=0.5, */*;q=0.1", "text/csv"),
        ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.stream"),
        ("text/html", "application/json"),
    ],
)
def test_accept(api: TestClient, path: str, accept: str, media_type: str) -> None:
    answer = api.get(path, headers={"Accept": accept})
    assert answer.headers["content-type"].partition(";")[0] == media_type
    forced = api.get(path, headers={"Accept": accept}, params={"format": "json"})
    assert forced.headers["content-type"] == "application/json"


def test_missing_series_are_named(api: TestClient, path: str) -> None:
    for query, status, told in (
        ("?format=xml", 422, "'json', 'csv' or 'arrow'"),
        ("?colour=1", 422, "/query/colour: not a label of these series: there are model, seed"),
        ("?seed=6", 404, 'no series has seed=6: there are seed=4; model="=a,b", seed=5'),
        ("?max_points=3", 422, "2 series need at least 4"),
        ("?max_points=8&max_points=9", 422, "/query/max_points: given 2 times, may be given once"),
        ("/mpt", 404, "the series are score, loss"),
    ):
        answer = api.get(path + query)
        assert answer.status_code == status, query
        assert told.replace('"', "") in answer.json()["detail"]


def test_labels_choose_among_all_series(api: TestClient, path: str) -> None:
    def names(query: str) -> list[str]:
        return [one["name"] for one in api.get(f"{path}?{query}").json()["series"]]

    assert names("seed=4") == ["score"]
    assert names("seed=4&seed=5") == ["score", "loss"]
    assert names("seed=5&model=%3Da,b") == ["loss"]


@pytest.mark.parametrize("format", [Format.JSON, Format.CSV])
def test_texts_that_are_repeated_for_each_point_are_limited(
    monkeypatch: pytest.MonkeyPatch, format: Format
) -> None:
    """A million points with a reason of 140 characters each took 200 MB as JSON."""
    codes = np.array([0, 1, 1, 2, 0])
    columns = {name: np.zeros(5) for name in COLUMNS} | {"reason": codes}
    curve = Curve("a", "score", {"model": "mpt"}, 5, columns, [None, "5 chr", "10 letters"])
    experiment = Experiment(id="a", status=Status.SUCCEEDED)
    answer = Answer([experiment], [curve], {"a": 5}, batch=False)
    assert written(answer, format).status_code == 200
    monkeypatch.setattr(curve_formats, "MAX_TEXT_BYTES", 19)
    with pytest.raises(ApiError, match="lower max_points") as refused:
        written(answer, format)
    assert refused.value.status == 422
    assert written(answer, Format.ARROW).status_code == 200

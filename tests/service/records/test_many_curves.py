"""The curves of many experiments at once: all or none, and none that is not the caller's to see."""

from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from service.accounts.users import ensure_key
from service.db.engine import Database
from service.queue import lease
from service.records import curves
from service.records.recording import Batch, record
from service.records.schemas import ManyCurvesOut
from service.records.selection import check_selection
from service.refusals import ApiError
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claimed
from tests.support.stored import change

URL = "/v1/curves:batchGet"


def recorded(database: Database, points: int, **labels: Any) -> str:
    """An ended experiment, with this number of points of `score` and one of `loss`."""
    claim = claimed(database)
    batch = Batch()
    for seq in range(1, points + 2):
        series = "score" if seq <= points else "loss"
        batch.add({"seq": seq, "record": "point", "series": series, "labels": labels, "x": seq,
                   "value": -seq, "std_err": 0.5, "n": 1})  # fmt: skip
    with database.transaction() as session:
        record(session, claim, batch, 60)
        lease.finish(session, claim, Status.SUCCEEDED)
    return claim.experiment_id


@pytest.fixture
def ids(database: Database) -> list[str]:
    return [recorded(database, 10 * (i + 1), seed=i) for i in range(3)]


def get(api: TestClient, **body: Any) -> Any:
    return api.post(URL, json=body)


def test_many_equal_the_single_requests(api: TestClient, ids: list[str]) -> None:
    order = [ids[2], ids[0], ids[1]]
    answer = get(api, ids=order)
    document = answer.json()
    ManyCurvesOut.model_validate_json(answer.content, strict=True, extra="forbid")
    assert document["items"] == [api.get(f"/v1/experiments/{id_}/curves").json() for id_ in order]
    assert (document["total_points"], document["sampled"], document["partial"]) == (
        63,
        False,
        False,
    )


def test_series_labels_and_points_of_all(
    api: TestClient, database: Database, ids: list[str]
) -> None:
    loss = get(api, ids=ids, series=["loss"]).json()
    assert [[s["name"] for s in one["series"]] for one in loss["items"]] == [["loss"]] * 3
    some = get(api, ids=ids, labels={"seed": [0, "2"]}).json()
    assert [len(one["series"]) for one in some["items"]] == [2, 0, 2]
    thin = get(api, ids=ids, max_points=30).json()
    shown = [len(s["x"]) for one in thin["items"] for s in one["series"]]
    assert sum(shown) <= 30
    assert min(shown) == 1
    assert thin["sampled"]
    assert claimed(database)  # one that runs
    running = api.get("/v1/experiments").json()["items"][0]["id"]
    assert get(api, ids=[*ids, running]).json()["partial"]


def test_too_many_series_are_refused_before_they_are_read(
    api: TestClient, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "MAX_SERIES", 6)
    assert get(api, ids=ids).status_code == 200
    monkeypatch.setattr(curves, "MAX_SERIES", 5)
    answer = get(api, ids=ids)
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert problem["pointer"] == "/ids"
    assert problem["detail"].endswith("they have 6 series together; at most 5 are read")
    monkeypatch.setattr(curves, "MAX_SERIES", 1)
    assert get(api, ids=ids[:1]).status_code == 200  # one experiment may have any


def test_csv_and_arrow_name_the_experiment(api: TestClient, ids: list[str]) -> None:
    answer = api.post(f"{URL}?format=arrow", json={"ids": ids, "series": ["loss"]})
    assert pa.ipc.open_stream(answer.content).read_all().to_pylist() == [
        {"experiment_id": id_, "status": "succeeded", "last_seq": n, "series": "loss", "seed": i,
         "x": n, "value": -n, "std_err": 0.5, "n": 1, "reason": None}
        for i, (id_, n) in enumerate(zip(ids, (11, 21, 31), strict=True))
    ]  # fmt: skip
    text = api.post(URL, json={"ids": ids}, headers={"Accept": "text/csv"}).text
    assert len(text.splitlines()) == 1 + 63
    assert text.startswith('"experiment_id","status","last_seq","series","seed","x"')


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"ids": []}, 422, "/ids"),
        ({"ids": ["a"] * 1001}, 422, "/ids"),
        ({"ids": [0]}, 422, "/ids/0"),
        ({}, 422, "/ids"),
        ({"colour": 1}, 422, "/colour"),
        ({"series": ["scores"]}, 404, None),
        ({"labels": {"sed": 4}}, 422, "/labels/sed"),
        ({"labels": {"seed": 4}}, 404, None),
        ({"labels": {"seed": None}}, 422, "/labels/seed"),
        ({"max_points": 1}, 422, "/max_points"),
        ({"max_points": 8}, 422, "/max_points"),
        ({"max_points": 9}, 200, None),
    ],
)
def test_invalid_requests_are_refused(
    api: TestClient, ids: list[str], body: Any, status: int, pointer: str | None
) -> None:
    answer = api.post(URL, json={**({} if body == {} else {"ids": ids}), **body})
    assert answer.status_code == status, answer.text
    if pointer:
        assert answer.json()["errors"][0]["pointer"].startswith(pointer)
    if status == 404:
        assert "there " in answer.json()["detail"]


def test_duplicate_ids_are_refused(api: TestClient, ids: list[str]) -> None:
    answer = get(api, ids=[ids[0], ids[1], ids[0]])
    assert [one["pointer"] for one in answer.json()["errors"]] == ["/ids/2"]


def test_experiments_of_others_are_not_found(
    api: TestClient, database: Database, settings: Settings, ids: list[str]
) -> None:
    """All or nothing, with exact messages; shared and deleted experiments are distinguished."""
    with database.transaction() as session:
        ensure_key(session, "other", settings.store / "other-key")
    key = (settings.store / "other-key").read_text().strip()
    change(database, ids[1], visibility="lab")
    change(database, ids[2], visibility="lab", deleted_at=1.0)
    texts = []
    for named in (ids[0], "0" * 32):
        answer = api.post(
            URL, json={"ids": [ids[1], named, ids[2]]}, headers={"Authorization": f"Bearer {key}"}
        )
        assert answer.status_code == 404
        assert [one["pointer"] for one in answer.json()["errors"]] == ["/ids/1", "/ids/2"]
        said = answer.json()
        texts.append(answer.text.replace(named, "it").replace(said["request_id"], ""))
    assert texts[0] == texts[1]


def test_wanted_values_are_not_searched_for_each_series() -> None:
    """A request may have 1,000 values of each label, and its experiments 20,000 series."""

    class Searched(list[str]):
        def __contains__(self, value: object) -> bool:
            raise AssertionError("the values are searched")

    known = [("score", {"seed": seed}) for seed in range(3)]
    check_selection(known, True, None, {"seed": Searched(["2"])})
    with pytest.raises(ApiError, match="no series has seed=4"):
        check_selection(known, True, None, {"seed": Searched(["4"])})

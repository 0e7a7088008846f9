"""Many experiments in one request: all or none."""

from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import func, select

from service.accounts.models import AuditEntry
from service.experiments.models import Event, Experiment
from tests.support.callers import database_of
from tests.support.ppca_spec import ppca_spec

PATH = "/v1/experiments:batch"


def entries(number: int) -> list[dict[str, Any]]:
    return [
        {"spec": ppca_spec(seeds=[i]), "name": f"run {i}", "priority": i % 50}
        for i in range(number)
    ]


def count(api: TestClient, table: type[Any] = Experiment) -> int:
    with database_of(api).snapshot() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_a_batch_equals_single_submissions(admin: TestClient) -> None:
    answer = admin.post(PATH, json={"experiments": entries(3)})
    assert answer.status_code == 202
    for i, one in enumerate(answer.json()["items"]):
        found = admin.get(one["url"]).json()
        assert (found["id"], found["name"], found["priority"]) == (one["id"], f"run {i}", i)
        assert (found["spec"]["seeds"], found["status"]) == ([i], "queued")
        assert found["queue"]["position"] == 2 - i
    single = admin.post("/v1/experiments", json=entries(1)[0]).json()["id"]
    with database_of(admin).snapshot() as session:
        first = answer.json()["items"][0]["id"]
        of_batch, alone = (session.get_one(Experiment, one) for one in (first, single))
        mine = {c.name: getattr(of_batch, c.name) for c in Experiment.__table__.columns}
        other = {c.name: getattr(alone, c.name) for c in Experiment.__table__.columns}
        apart = {name for name in mine if mine[name] != other[name]}
        assert apart <= {"id", "created_at", "submission_sha256"}
        events = select(func.count()).select_from(Event).group_by(Event.experiment_id)
        assert session.scalars(events).all() == [1] * 4
        audited = select(func.count()).where(AuditEntry.action == "experiment.submitted")
        assert session.scalar(audited) == 4


def test_a_wrong_submission_refuses_the_batch_and_is_named(admin: TestClient) -> None:
    bad = entries(3)
    bad[1]["spec"]["model"]["latent_dim"] = 0
    bad[2]["spec"]["modell"] = {}
    answer = admin.post(PATH, json={"experiments": bad})
    assert answer.status_code == 422
    found = {one["pointer"]: one["detail"] for one in answer.json()["errors"]}
    assert "not 0" in found["/experiments/1/spec/model/latent_dim"]
    assert "unknown field" in found["/experiments/2/spec/modell"]
    large = entries(2)
    large[1]["spec"] = ppca_spec(data__n=100_000_000, data__dim=100_000)
    answer = admin.post(PATH, json={"experiments": large})
    assert answer.json()["errors"][0]["pointer"] == "/experiments/1/spec/data"
    nowhere = entries(2)
    nowhere[1]["after"] = ["0" * 32]
    answer = admin.post(PATH, json={"experiments": nowhere})
    assert answer.json()["errors"][0]["pointer"] == "/experiments/1/after/0"
    assert count(admin) == 0


def test_a_batch_has_one_to_a_thousand_submissions(admin: TestClient) -> None:
    for number, words in ((0, "at least 1"), (1001, "at most 1000")):
        answer = admin.post(PATH, json={"experiments": entries(number)})
        (error,) = answer.json()["errors"]
        assert (error["pointer"], words in error["detail"]) == ("/experiments", True)
    assert admin.post(PATH, json={"experiments": entries(1000)}).status_code == 202
    assert count(admin) == 1000


def test_a_refused_batch_leaves_its_key_free(admin: TestClient) -> None:
    key = {"Idempotency-Key": "once"}
    bad = [*entries(1), {**entries(1)[0], "after": ["0" * 32]}]
    assert admin.post(PATH, json={"experiments": bad}, headers=key).status_code == 422
    assert admin.post(PATH, json={"experiments": entries(2)}, headers=key).status_code == 202


def test_a_batch_may_not_jump_the_queue(admin: TestClient) -> None:
    jumping = [*entries(1), {**entries(1)[0], "priority": 150}]
    answer = admin.post(PATH, json={"experiments": jumping})
    assert (answer.status_code, answer.json()["reason"]) == (403, "may_not_jump")
    assert count(admin) == 0

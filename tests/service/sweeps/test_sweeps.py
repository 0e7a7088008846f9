"""Sweeps: their points, refusals, and changes of all points at once."""

import csv
import io
import math
from itertools import islice
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from service.db.engine import Database, now
from service.experiments.models import Experiment, Held, Metric
from service.operations import retention as files
from service.queue import lease
from service.queue.lease import Claim, FailureCause
from service.records import recording
from service.settings import Settings
from service.submission.models import KeptRequest
from service.sweeps.expansion import MAX_POINTS
from service.sweeps.models import Sweep, SweepPoint
from service.vocabulary import Status
from tests.support.callers import bearer, database_of, member
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import release_held, start_next

SPEC = ppca_spec(model__init="random")
GRID = {"model.latent_dim": [1, 2, 3], "seeds": [[4], [44]]}


def sweep(api: TestClient, headers: dict[str, str] | None = None, **beside: Any) -> dict[str, Any]:
    body = {"spec": SPEC, **({"grid": GRID} if "list" not in beside else {}), **beside}
    answer = api.post("/v1/sweeps", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    made: dict[str, Any] = answer.json()
    return made


def refused(api: TestClient, path: str = "/v1/sweeps", **body: Any) -> list[tuple[str, str]]:
    answer = api.post(path, json=body)
    assert answer.status_code == 422, answer.text
    assert count(api) == 0
    return [(one["pointer"], one["detail"]) for one in answer.json()["errors"]]


def count(api: TestClient) -> int:
    return len(api.get("/v1/experiments?limit=500").json()["items"])


def rows(api: TestClient, sweep_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/v1/sweeps/{sweep_id}/table").json()["items"]
    return found


def states(api: TestClient, sweep_id: str) -> list[str]:
    return [row["status"] for row in rows(api, sweep_id)]


def claim_next(database: Database) -> Claim | None:
    with database.transaction() as session:
        return start_next(session)


def finish(database: Database, claim: Claim | None, status: Status = Status.SUCCEEDED) -> None:
    assert claim is not None
    cause = FailureCause("error", "it broke") if status == Status.FAILED else None
    with database.transaction() as session:
        lease.finish(session, claim, status, cause)


def test_points_are_added_after_those_that_there_are(admin: TestClient) -> None:
    made = sweep(admin)
    path, more = made["urls"]["points"], {"grid": {"evaluate.masks.per_size": [5, 6]}}
    assert admin.post(path, json=more).json() == {"first": 6, "count": 2}
    table = rows(admin, made["id"])
    assert [row["point"] for row in table] == [*range(8)]
    assert [row["fields"]["evaluate.masks.per_size"] for row in table] == [4] * 6 + [5, 6]
    bad = admin.post(path, json={"list": [{"model.latent_dim": 9}]})
    assert bad.json()["errors"][0]["pointer"] == "/list/0/model.latent_dim"
    many = admin.post(path, json={"grid": {"seeds": [[i] for i in range(MAX_POINTS - 7)]}})
    assert (many.status_code, f"at most {MAX_POINTS}" in many.json()["detail"]) == (422, True)


def test_the_limit_of_a_sweep_holds(admin: TestClient) -> None:
    """After any outcome of a run the next point starts, in the order of the points. Experiments
    without a sweep are not delayed."""
    made = sweep(admin, concurrency=2)
    database = database_of(admin)
    ids = [row["experiment_id"] for row in rows(admin, made["id"])]

    def next_id() -> tuple[Claim, str]:
        claim = claim_next(database)
        assert claim is not None
        return claim, claim.experiment_id

    (first, _), (second, _) = next_id(), next_id()
    assert claim_next(database) is None
    waiting = admin.get(f"/v1/experiments/{ids[2]}").json()
    assert "limit of 2 concurrent runs" in waiting["queue"]["reason"]
    other = admin.post("/v1/experiments", json={"spec": SPEC}).json()["id"]
    assert next_id()[1] == other
    finish(database, second, Status.FAILED)
    third, third_id = next_id()
    assert third_id == ids[2]
    assert claim_next(database) is None
    finish(database, first)
    admin.post(f"/v1/experiments/{ids[3]}:cancel")
    fourth, fourth_id = next_id()
    assert fourth_id == ids[4]
    finish(database, third)
    fifth, _ = next_id()
    for claim in (fourth, fifth):
        finish(database, claim)
    assert claim_next(database) is None


def test_a_sweep_stored_by_an_earlier_version_gets_points(admin: TestClient) -> None:
    """Its spec may have fields that a request may not have any more. It is shown without them, so
    it can be submitted again."""
    made = sweep(admin)
    old = {**made["spec"], "evaluate": {**made["spec"]["evaluate"], "lml": {"method": "exact"}}}
    with database_of(admin).transaction() as session:
        session.execute(update(Sweep).values(spec=old))
    assert admin.get(made["urls"]["self"]).json()["spec"] == made["spec"]
    added = admin.post(made["urls"]["points"], json={"list": [{"data.n": 20}]})
    assert added.json() == {"first": 6, "count": 1}


def test_resumed_and_retried_points_wait_for_the_limit(admin: TestClient) -> None:
    made = sweep(admin, concurrency=1)
    database = database_of(admin)
    ids = [row["experiment_id"] for row in rows(admin, made["id"])]
    first = claim_next(database)
    assert first is not None
    admin.post(f"/v1/experiments/{ids[0]}:pause")
    with database.transaction() as session:
        assert lease.release(session, first) == Status.PAUSED
    assert claim_next(database) is not None  # in its place
    admin.post(f"/v1/experiments/{ids[0]}:resume")
    admin.post(f"/v1/experiments/{ids[2]}:cancel")
    again = admin.post(f"/v1/experiments/{ids[2]}:retry").json()["id"]
    assert rows(admin, made["id"])[2]["experiment_id"] == again
    assert claim_next(database) is None
    with database.snapshot() as session:
        found = session.execute(select(Experiment.id, Experiment.held)).all()
        held = {row.id: row.held for row in found}
    assert (held[ids[0]], held[again]) == (Held.SWEEP, Held.SWEEP)


def test_the_limit_may_change(admin: TestClient) -> None:
    made = sweep(admin)
    path, database = made["urls"]["self"], database_of(admin)
    assert claim_next(database) is not None
    assert admin.patch(path, json={"concurrency": 1}).json()["concurrency"] == 1
    assert claim_next(database) is None
    admin.patch(path, json={"concurrency": 2})
    assert claim_next(database) is not None
    assert claim_next(database) is None
    assert admin.patch(path, json={"concurrency": None}).status_code == 200
    assert claim_next(database) is not None


def test_a_sweep_is_cancelled_and_retried_as_a_whole(admin: TestClient) -> None:
    made = sweep(admin)
    database = database_of(admin)
    before = [row["experiment_id"] for row in rows(admin, made["id"])]
    finish(database, claim_next(database))
    running = claim_next(database)
    assert made["can"] == ["cancel", "change", "delete"]
    answer = admin.post(made["urls"]["cancel"]).json()
    assert (answer["can"], answer["ended"]) == (["cancel", "retry", "change"], 5)
    assert answer["counts"] | {"cancelled": 4, "running": 1, "succeeded": 1} == answer["counts"]
    assert running is not None
    with database.transaction() as session:
        assert lease.heartbeat(session, running, 60).desired == "cancel"
        lease.finish(session, running, Status.CANCELLED)
    ended = admin.get(made["urls"]["self"]).json()
    assert (ended["status"], ended["terminal"]) == ("cancelled", True)
    assert ended["can"] == ["retry", "change", "delete"]
    assert admin.post(made["urls"]["retry"]).json() == {"count": 5, "more": False}
    assert admin.post(made["urls"]["retry"]).json() == {"count": 0, "more": False}
    after = [row["experiment_id"] for row in rows(admin, made["id"])]
    assert after[0] == before[0]
    assert set(after[1:]).isdisjoint(before)
    again = admin.get(f"/v1/experiments/{after[3]}").json()
    assert (again["retry_of"], again["status"]) == (before[3], "queued")
    assert states(admin, made["id"]) == ["succeeded"] + ["queued"] * 5


def test_a_retry_with_missing_references_is_refused(admin: TestClient) -> None:
    trained = ppca_spec(model__init="random", train={"objective": "lml", "epochs": 1})
    first = admin.post("/v1/experiments", json={"spec": trained}).json()["id"]
    from_it = {"init": "experiment", "experiment": first, "noise_precision": None}
    base = {name: value for name, value in SPEC.items() if name != "model"}
    model = {"family": "ppca", "latent_dim": 2, **from_it}
    answer = admin.post("/v1/sweeps", json={"spec": base, "grid": {"model": [model]}})
    assert answer.status_code == 202, answer.text
    admin.post(f"/v1/experiments/{first}:cancel")
    release_held(database_of(admin))
    assert states(admin, answer.json()["id"]) == ["failed"]
    refusal = admin.post(answer.json()["urls"]["retry"])
    assert (refusal.status_code, refusal.json()["reason"]) == (409, "not_retryable")


def measure(admin: TestClient, experiment_id: str, *values: float | None, **labels: Any) -> None:
    """Record the metric `mpt` of an experiment, one value for each seed from 0 on."""
    with database_of(admin).transaction() as session:
        own = select(func.count()).where(Metric.experiment_id == experiment_id)
        first = session.scalar(own) or 0
        for seed, value in enumerate(values):
            of = recording.canonical({"seed": seed, **labels})
            session.add(Metric(experiment_id=experiment_id, name="mpt", labels=of,
                               seq=first + seed, value=value, std_err=0.5))  # fmt: skip


def csv_of(admin: TestClient, made: dict[str, Any], **form: str) -> list[list[str]]:
    answer = admin.get(made["urls"]["table"], params={"format": "csv", **form})
    assert answer.headers["content-type"].startswith("text/csv")
    return [*csv.reader(io.StringIO(answer.text))]


def test_a_table_has_metrics_over_seeds_with_their_errors(admin: TestClient) -> None:
    made = sweep(admin, grid={"data.n": [50, 60, 70]})
    first, second, third = (row["experiment_id"] for row in rows(admin, made["id"]))
    measure(admin, first, -10.0, -14.0, model="a")
    measure(admin, first, -30.0, model="=b")
    measure(admin, second, -60.0, None, model="a")
    with database_of(admin).transaction() as session:
        session.execute(
            update(Experiment)
            .where(Experiment.id == second)
            .values(status=Status.FAILED, failure_kind="oom", failure_message="=1+1")
        )
    found = rows(admin, made["id"])
    assert found[0]["metrics"] == {
        "mpt[model=a]": {"value": -12.0, "std_err": 2.0, "count": 2},
        "mpt[model==b]": {"value": -30.0, "std_err": 0.5, "count": 1},
    }
    missing = {"value": None, "std_err": None, "count": 2}
    assert found[1]["metrics"] == {"mpt[model=a]": missing}
    assert found[1]["failure"] == {"kind": "oom", "message": "=1+1"}
    names = [
        f"mpt[model={name}]{what}" for name in ("a", "=b") for what in ("", " std_err", " count")
    ]
    assert csv_of(admin, made) == [
        ["point", "experiment_id", "status", "data.n", *names],
        ["0", first, "queued", "50", "-12.0", "2.0", "2", "-30.0", "0.5", "1"],
        ["1", second, "failed", "60", "", "", "2", "", "", ""],
        ["2", third, "queued", "70", "", "", "", "", "", ""],
    ]
    assert csv_of(admin, made, form="long") == [
        ["point", "experiment_id", "status", "data.n", "metric", "model", "seed", "value",
         "std_err"],
        ["0", first, "queued", "50", "mpt", "a", "0", "-10.0", "0.5"],
        ["0", first, "queued", "50", "mpt", "a", "1", "-14.0", "0.5"],
        ["0", first, "queued", "50", "mpt", "'=b", "0", "-30.0", "0.5"],
        ["1", second, "failed", "60", "mpt", "a", "0", "-60.0", "0.5"],
        ["1", second, "failed", "60", "mpt", "a", "1", "", "0.5"],
    ]  # fmt: skip


def test_points_that_differ_only_in_their_seeds_are_pooled(admin: TestClient) -> None:
    grid = {"data.n": [50, 60], "seeds": [[0], [1], [2]]}
    made = sweep(admin, grid=grid)
    for row, value in zip(rows(admin, made["id"]), (1.0, 2.0, 6.0, 5.0, 5.0, 5.0), strict=True):
        measure(admin, row["experiment_id"], value)
    table = admin.get(made["urls"]["table"]).json()
    assert [one["metrics"]["mpt"]["count"] for one in table["items"]] == [1] * 6
    assert table["metrics"] == ["mpt"]
    error = pytest.approx(math.sqrt(7 / 3))
    within = pytest.approx(math.hypot(0.5, 0.5, 0.5) / 3)
    assert table["pooled"] == [
        {"points": 3, "fields": {"data.n": 50},
         "metrics": {"mpt": {"value": 3.0, "std_err": error, "count": 3}}},
        {"points": 3, "fields": {"data.n": 60},
         "metrics": {"mpt": {"value": 5.0, "std_err": within, "count": 3}}},
    ]  # fmt: skip
    head, *lines = csv_of(admin, made, form="pooled")
    assert head == ["points", "data.n", "mpt", "mpt std_err", "mpt count"]
    assert [[*line[:3], line[4]] for line in lines] == [["3", "50", "3.0", "3"],
                                                       ["3", "60", "5.0", "3"]]  # fmt: skip
    assert len(csv_of(admin, made)[0]) == 3 + 2 + 3


def test_a_table_contains_only_visible_points(admin: TestClient) -> None:
    made = sweep(admin)
    own = bearer(member(admin)["key"])
    assert admin.get(made["urls"]["self"], headers=own).status_code == 404
    admin.patch(made["urls"]["self"], json={"visibility": "lab", "priority": 7})
    hidden = rows(admin, made["id"])[0]["experiment_id"]
    assert admin.get(f"/v1/experiments/{hidden}").json()["priority"] == 7
    admin.patch(f"/v1/experiments/{hidden}", json={"visibility": "private"})
    seen = admin.get(made["urls"]["self"], headers=own).json()
    assert (seen["points"], seen["counts"]["queued"]) == (5, 5)
    table = admin.get(made["urls"]["table"], headers=own).json()["items"]
    assert [row["point"] for row in table] == [1, 2, 3, 4, 5]
    listed = admin.get("/v1/sweeps?whose=lab", headers=own).json()["items"]
    assert [(one["id"], one["points"]) for one in listed] == [(made["id"], 5)]
    assert admin.get("/v1/sweeps", headers=own).json()["items"] == []


def test_a_deleted_sweep_deletes_its_own_experiments(admin: TestClient) -> None:
    made = sweep(admin)
    database = database_of(admin)
    running = claim_next(database)
    path = made["urls"]["self"]
    assert "delete" not in admin.get(path).json()["can"]
    assert admin.delete(path).json()["reason"] == "wrong_state"
    finish(database, running)
    pinned = rows(admin, made["id"])[0]["experiment_id"]
    admin.patch(f"/v1/experiments/{pinned}", json={"pinned": True})
    assert "delete" not in admin.get(path).json()["can"]
    assert admin.delete(path).json()["reason"] == "pinned"
    admin.patch(f"/v1/experiments/{pinned}", json={"pinned": False})
    assert "delete" in admin.get(path).json()["can"]
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404
    assert count(admin) == 0
    with database.snapshot() as session:
        ended = session.scalars(select(Experiment.status).order_by(Experiment.id)).all()
        assert ended == ["succeeded"] + ["cancelled"] * 5
        assert session.scalar(select(Experiment.deleted_at <= now()).limit(1))


def test_a_deleted_sweep_is_purged_after_its_experiments(
    admin: TestClient, settings: Settings
) -> None:
    made = sweep(admin, {"Idempotency-Key": "once"})
    kept = sweep(admin)
    admin.delete(made["urls"]["self"])
    database, now_on = database_of(admin), settings.model_copy(update={"purge_after_s": 0.0})
    files.purge(database, now_on, islice(files.purgeable(database, now_on), 2))
    with database.snapshot() as session:
        assert session.get(Sweep, made["id"]) is not None
    files.purge(database, now_on, files.purgeable(database, now_on))
    with database.transaction() as session:
        assert session.scalars(select(Sweep.id)).all() == [kept["id"]]
        assert session.scalars(select(SweepPoint.sweep_id).distinct()).all() == [kept["id"]]


def test_an_idempotency_key_is_known_for_thirty_days(admin: TestClient, settings: Settings) -> None:
    made = sweep(admin, {"Idempotency-Key": "once"})
    database = database_of(admin)
    for days, known in ((29.9, True), (30.1, False)):
        with database.transaction() as session:
            session.execute(update(KeptRequest).values(created_at=now() - days * 86_400))
        files.purge(database, settings, [])
        again = sweep(admin, {"Idempotency-Key": "once"})["id"]
        assert (again == made["id"]) == known


def test_a_sweep_whose_points_were_computed_before_is_on_a_page_of_its_time(
    admin: TestClient,
) -> None:
    first, *_, last = (
        admin.post("/v1/experiments", json={"spec": SPEC, "name": name}).json()["id"]
        for name in ("a", "b", "c")
    )
    made = sweep(admin, grid={"model.latent_dim": [1, 2]}, name="of two")
    with database_of(admin).transaction() as session:
        newer = session.get_one(Experiment, last).created_at
        older = session.get_one(Experiment, first).created_at
        session.execute(update(Experiment).values(sweep_id=None))  # as those of the cache
        change = update(Sweep).where(Sweep.id == made["id"])
        session.execute(change.values(created_at=(older + newer) / 2))

    def pages(**query: Any) -> list[list[str]]:
        found: list[list[str]] = []
        cursor: dict[str, str] | None = {}
        while cursor is not None:
            answer = admin.get("/v1/experiments", params={"folded": True, **query, **cursor}).json()
            found.append(answer["sweeps"])
            cursor = answer["next_cursor"] and {"cursor": answer["next_cursor"]}
        return found

    for order in ("created desc", "created asc"):
        alone = pages(limit=1, order_by=order)
        assert sorted(alone) == [[]] * (len(alone) - 1) + [[made["id"]]]
    assert pages(name="a") == [[]]
    assert pages(folded=False) == [[]]


def test_a_list_has_the_best_point_of_a_sweep(admin: TestClient) -> None:
    made = sweep(admin, grid={"model.latent_dim": [1, 2]})
    noise = sweep(admin, grid={"data.n": [50, 60]})
    first, second = (row["experiment_id"] for row in rows(admin, made["id"]))
    for row in rows(admin, noise["id"]):
        measure(admin, row["experiment_id"], -1.0)
    measure(admin, first, -12.0, -14.0)
    measure(admin, second, -60.0)
    measure(admin, second, -1.0, epoch=0)
    best = {one["id"]: one["best"] for one in admin.get("/v1/sweeps").json()["items"]}
    assert best[noise["id"]] is None, "their data differ"
    assert best[made["id"]] == admin.get(f"/v1/sweeps/{made['id']}").json()["best"]
    assert best[made["id"]] == {
        "metric": "mpt", "label": "MPT", "value": -13.0, "std_err": 1.0, "experiment_id": first,
        "at": "K = 1",
    }  # fmt: skip


def test_a_folded_list_has_a_sweep_once(admin: TestClient) -> None:
    """Its newest point that matches stands for it; the others are listed by their sweep."""
    made = sweep(admin, grid={"model.latent_dim": [1, 2, 3]}, name="of three")
    alone = admin.post("/v1/experiments", json={"spec": SPEC, "name": "alone"}).json()["id"]

    def listed(**query: Any) -> list[str]:
        answer = admin.get("/v1/experiments", params=query)
        assert answer.status_code == 200, answer.text
        return [one["id"] for one in answer.json()["items"]]

    points = listed(filter=f'sweep = "{made["id"]}"', order_by="created asc")
    assert len(points) == 3
    assert listed(folded=True) == [alone, points[2]]
    assert listed(folded=True, filter="spec.model.latent_dim < 3") == [alone, points[1]]
    assert listed(filter="sweep = null") == [alone]
    (found,) = admin.get("/v1/sweeps", params={"id": [made["id"]]}).json()["items"]
    assert (found["name"], found["points"]) == ("of three", 3)
    assert admin.get("/v1/sweeps", params={"id": ["none"]}).json()["items"] == []
    unordered = admin.get("/v1/experiments", params={"folded": True, "order_by": "name asc"})
    assert unordered.json()["errors"][0]["pointer"] == "/query/folded"

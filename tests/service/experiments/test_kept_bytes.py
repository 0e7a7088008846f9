"""Bytes that users keep: counted as they are stored and deleted, and refused beyond a limit."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text, update

from service.accounts.models import User
from service.db.engine import Database, now
from service.experiments import store
from service.experiments.models import Attempt, Experiment
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.operations import retention
from service.queue import lease, quota, sizes, states
from service.queue.sizes import EXPERIMENT_BYTES, POINT_BYTES
from service.records.recording import Batch, record
from service.refusals import ApiError
from service.settings import Settings
from service.sweeps import store as sweeps
from service.sweeps.models import Sweep
from service.sweeps.schemas import SweepSubmission
from service.vocabulary import DesiredState, Status
from tests.support import stored
from tests.support.attempts import claim_next, claimed, submitted
from tests.support.callers import bearer, database_of, member
from tests.support.kept_bytes import bytes_agree
from tests.support.ppca_spec import ppca_spec
from tests.support.records import point
from tests.support.starting import release_held
from tests.support.uploads import GOOD, npy

Line = dict[str, Any]
METRIC: Line = {"record": "metric", "name": "lml", "labels": {}, "value": None, "std_err": None}
LOG: Line = {"record": "log", "level": "info", "message": "“later”"}
ARTIFACT: Line = {"record": "artifact", "file": "a", "media_type": "x", "sha256": "0",
                  "bytes": 1000}  # fmt: skip


def write(database: Database, claim: lease.Claim, *records: dict[str, Any]) -> None:
    batch = Batch()
    for one in records:
        batch.add(one)
    with database.transaction() as session:
        record(session, claim, batch, 60)


def everything(first: int) -> list[dict[str, Any]]:
    kinds = ({**METRIC, "reason": "é"}, LOG, ARTIFACT)
    points = [point(first), {**point(first + 1), "value": None, "reason": "late"}]
    return [*points, *({**one, "seq": first + i} for i, one in enumerate(kinds, 2))]


def counted(database: Database) -> int:
    """Bytes of the first user once they are measured, after a check that they equal the content of
    the tables."""
    with database.transaction() as session:
        sizes.measure(session)
    with database.snapshot() as session:
        assert bytes_agree(session)
        return quota.kept(session, 1)


def test_records_are_measured_after_the_end_of_an_attempt(either: Database) -> None:
    """While it runs, what it writes is expected; its earlier records are measured again later."""
    claim = claimed(either)
    spec = counted(either)
    assert spec == EXPERIMENT_BYTES + len(json.dumps(claim.spec))
    checkpoint = {"seq": None, "record": "checkpoint", "after": 2, "file": "c", "sha256": "0"}
    write(either, claim, point(1), point(2), checkpoint)
    write(either, claim, *everything(3))
    assert counted(either) == spec
    with either.transaction() as session:
        lease.mark_lost(session, claim, max_lost=3)
    stored = counted(either)
    assert stored > spec + 1000 + 4 * POINT_BYTES
    again = claim_next(either)
    assert again.after_seq == 2
    assert counted(either) == spec
    with either.transaction() as session:
        lease.finish(session, again, Status.SUCCEEDED)
    assert counted(either) == spec + 2 * POINT_BYTES


def test_a_locked_experiment_is_measured_later(lab: Settings) -> None:
    database = Database(lab.url, connections=3, timeouts="-c lock_timeout=2s")
    claim = claimed(database)
    write(database, claim, *everything(1))
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    with database.transaction() as session:
        session.get_one(Experiment, claim.experiment_id, with_for_update=True)
        before = counted(database)
    assert counted(database) > before
    database.close()


def test_small_experiments_take_little_more_of_the_database_than_is_counted(
    either: Database,
) -> None:
    """Their rows and index entries are larger than their specs."""
    pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    is_file = either.engine.dialect.name == "sqlite"
    size = text(pages if is_file else "SELECT pg_database_size(current_database())")
    submission = Submission.model_validate({"spec": ppca_spec()})
    taken = []
    for number in (10, 200):
        with either.transaction() as session:
            for _ in range(number):
                stored.submit(session, 1, submission)
        with either.snapshot() as session:
            taken.append((session.scalar(size) or 0, quota.kept(session, 1)))
    (bytes_before, counted_before), (bytes_after, counted_after) = taken
    assert bytes_after - bytes_before < 1.5 * (counted_after - counted_before)


def checkpoint(file: str, size: int) -> dict[str, Any]:
    return {"seq": None, "record": "checkpoint", "after": 0, "file": file, "sha256": "0",
            "bytes": size}  # fmt: skip


def test_kept_checkpoints_are_counted(either: Database) -> None:
    """Two of each experiment, until it ends."""
    claim = claimed(either)
    spec = counted(either)
    for file, kept in (("1", 100), ("2", 100 + 30), ("3", 30 + 7)):
        write(either, claim, checkpoint(file, {"1": 100, "2": 30, "3": 7}[file]))
        assert counted(either) == spec + kept
    with either.transaction() as session:
        session.execute(update(Experiment).values(desired_state=DesiredState.PAUSE))
        lease.release(session, claim)
    assert counted(either) == spec + 37
    with either.transaction() as session:
        states.request(session, claim.experiment_id, DesiredState.CANCEL)
    assert counted(either) == spec


def test_a_run_does_not_wait_for_a_submission(lab: Settings) -> None:
    """A claim, whose attempt refers to the user, and a batch of records do not need the lock that
    the user's submissions and uploads acquire."""
    database = Database(lab.url, timeouts="-c lock_timeout=2s")
    submitted(database)
    with database.transaction() as session:
        quota.lock(session, 1)
        write(database, claim_next(database), *everything(1))
    counted(database)
    database.close()


def test_retention_measures_artifacts_recorded_without_a_size(
    admin: TestClient, place: Settings
) -> None:
    """Artifacts that were recorded before sizes were, once their run has ended."""
    database = database_of(admin)
    claim = claimed(database)
    write(database, claim, {**ARTIFACT, "seq": 1, "bytes": None})
    before = counted(database)
    file = place.artifacts(claim.experiment_id, 1) / "a"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(77))
    retention.measure_artifacts(database, place)
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    assert counted(database) == before
    for _ in range(2):
        retention.measure_artifacts(database, place)
        assert counted(database) == before + 77


def purge(database: Database, place: Settings) -> None:
    with database.transaction() as session:
        session.execute(update(Experiment).values(finished_at=now(), status=Status.CANCELLED))
    release_held(database)
    at_once = place.model_copy(update={"purge_after_s": 0.0})
    retention.purge(database, at_once, retention.purgeable(database, at_once))


@pytest.mark.usefixtures("inspected_here")
def test_deleting_counts_down(admin: TestClient, place: Settings) -> None:
    """Uploads at once, experiments and sweeps when they are purged."""
    database = database_of(admin)
    body = {"spec": ppca_spec(model__init="random"), "grid": {"seeds": [[1], [2]]}}
    made = admin.post("/v1/sweeps", json=body).json()
    write(database, claim_next(database), *everything(1))
    with database.transaction() as session:
        session.execute(update(Experiment).values(status=Status.CANCELLED, lease_expires_at=None))
    of_sweep = counted(database)
    data = admin.post("/v1/datasets", params={"name": "a.npy"}, content=npy(GOOD)).json()
    assert counted(database) == of_sweep + data["bytes"]
    assert admin.delete(f"/v1/datasets/{data['id']}").status_code == 204
    assert admin.delete(f"/v1/datasets/{data['id']}").status_code == 404
    assert counted(database) == of_sweep
    assert admin.delete(f"/v1/sweeps/{made['id']}").status_code == 204
    assert counted(database) == of_sweep
    with database.transaction() as session:
        session.execute(update(Attempt).values(ended_at=now(), outcome=Status.CANCELLED))
    purge(database, place)
    assert counted(database) == 0


def refused(api: TestClient, path: str, body: Any, method: str = "POST", **more: Any) -> None:
    answer = api.request(method, path, json=body, **more)
    assert (answer.status_code, answer.json()["reason"]) == (409, "storage_quota"), answer.text
    assert "and your limit is " in answer.json()["detail"]


def test_every_submission_of_a_user_over_quota_is_refused(admin: TestClient) -> None:
    headers = bearer(member(admin)["key"])
    spec = ppca_spec(model__init="random")
    one = {"spec": spec, "cache": False}
    sweep_body = {"spec": spec, "grid": {"seeds": [[5], [6]]}, "cache": False}
    old = admin.post("/v1/experiments", json=one, headers=headers).json()["id"]
    made = admin.post("/v1/sweeps", json=sweep_body, headers=headers).json()["id"]
    for path in (f"/v1/experiments/{old}:cancel", f"/v1/sweeps/{made}:cancel"):
        assert admin.post(path, headers=headers).is_success
    assert admin.patch("/v1/users/ann", json={"max_bytes": 0}).json()["max_bytes"] == 0
    kept = counted_of_all(admin)
    for path, body in (
        ("/v1/experiments", one),
        ("/v1/experiments:batch", {"experiments": [one, one]}),
        ("/v1/sweeps", sweep_body),
        (f"/v1/sweeps/{made}/points", {"grid": {"seeds": [[7]]}}),
        (f"/v1/experiments/{old}:retry", None),
        (f"/v1/sweeps/{made}:retry", None),
    ):
        refused(admin, path, body, headers=headers)
    upload = "/v1/datasets?name=a.npy"
    answer = admin.post(upload, headers=headers, content=npy(GOOD))
    assert (answer.status_code, answer.json()["reason"]) == (409, "storage_quota")
    assert counted_of_all(admin) == kept
    admin.patch("/v1/users/ann", json={"max_bytes": None})
    assert admin.post(f"/v1/sweeps/{made}:retry", headers=headers).is_success


def counted_of_all(api: TestClient) -> dict[int, int]:
    with database_of(api).snapshot() as session:
        assert bytes_agree(session)
        return quota.kept_by_user(session)


def test_expected_output_of_running_experiments_counts(either: Database) -> None:
    """If the limit has room for only one experiment with its points, a second one is accepted only
    after the first has ended with fewer bytes."""
    submission = Submission.model_validate({"spec": ppca_spec()})
    spec = EXPERIMENT_BYTES + len(json.dumps(submission.spec.model_dump(mode="json")))
    points = submission.spec.point_count().total * POINT_BYTES
    assert points > 0
    fair_share = FairShare(max_bytes=2 * spec + 2 * points - 1)

    def submit(fair_share: FairShare) -> str:
        with either.transaction() as session:
            return stored.submit(session, 1, submission, fair_share=fair_share).id

    with pytest.raises(ApiError, match=f"this needs {spec + points}, and your limit is "):
        submit(FairShare(max_bytes=spec + points - 1))
    first = submit(FairShare(max_bytes=spec + points))
    with pytest.raises(ApiError, match=f"unfinished experiments may write {points} more"):
        submit(fair_share)
    with either.transaction() as session:
        ended = update(Experiment).where(Experiment.id == first)
        session.execute(ended.values(status=Status.CANCELLED))
    submit(fair_share)


def test_what_an_ended_run_may_have_written_counts_until_it_is_measured(either: Database) -> None:
    claim = claimed(either)
    with either.transaction() as session:
        unlimited = FairShare(max_bytes=10**12)
        running = quota.room_of(session, 1, unlimited)
        lease.finish(session, claim, Status.SUCCEEDED)
        assert quota.room_of(session, 1, unlimited) == running
        sizes.measure(session)
        assert quota.room_of(session, 1, unlimited).expected == 0 < running.expected


def test_the_limit_of_a_user_overrides_that_of_the_lab(either: Database) -> None:
    with either.transaction() as session:
        for own, lab, most in ((None, None, None), (None, 7, 7), (0, 7, 0), (9, None, 9)):
            session.execute(update(User).where(User.id == 1).values(max_bytes=own))
            assert quota.limit(session, 1, FairShare(max_bytes=lab)) == most


def test_stored_bytes_are_shown(admin: TestClient) -> None:
    submitted(database_of(admin))
    kept = counted(database_of(admin))
    queue = admin.get("/v1/queue").json()
    assert (queue["kept_bytes"], queue["max_bytes"]) == (kept, FairShare().max_bytes)
    admin.patch("/v1/users/local", json={"max_bytes": 10**12})
    assert admin.get("/v1/queue").json()["max_bytes"] == 10**12
    member(admin)
    items = admin.get("/v1/usage").json()["items"]
    assert {one["name"]: one["kept_bytes"] for one in items} == {"local": kept, "ann": 0}


@pytest.mark.parametrize("kind", ["experiments", "sweeps"])
def test_texts_beside_a_spec_count(admin: TestClient, place: Settings, kind: str) -> None:
    """In bytes as they are stored: a letter may have several."""
    database = database_of(admin)
    points = {"list": [{"seeds": [5]}]} if kind == "sweeps" else {}
    body = {"spec": ppca_spec(), "cache": False, **points}
    admin.post(f"/v1/{kind}", json=body)
    bare = counted(database)
    texts = {"name": "é" * 5, "note": "“" * 12 + "cccc"}  # of 50 bytes
    one = admin.post(f"/v1/{kind}", json={**body, **texts}).json()["urls"]["self"]
    assert counted(database) >= 2 * bare + 50
    for changes, more in (({"note": "d" * 1000}, 960), ({"note": None}, -1000)):
        before = counted(database)
        assert admin.patch(one, json=changes).is_success
        assert counted(database) == before + more
    admin.patch("/v1/users/local", json={"max_bytes": 0})
    refused(admin, one, {"note": "e"}, "PATCH")
    assert admin.patch(one, json={"name": None}).is_success
    admin.patch("/v1/users/local", json={"max_bytes": None})
    for made in admin.get(f"/v1/{kind}").json()["items"]:
        assert admin.delete(f"/v1/{kind}/{made['id']}").is_success
    with database.transaction() as session:
        session.execute(update(Experiment).values(status=Status.CANCELLED, deleted_at=1.0))
    purge(database, place)
    assert counted(database) == 0


@pytest.mark.parametrize("kind", ["experiment", "sweep"])
def test_two_changes_at_once_count_once(lab: Settings, kind: str) -> None:
    database = Database(lab.url, connections=3)
    body = {"spec": ppca_spec(), "list": [{"seeds": [5]}], "note": "a" * 100}
    with database.transaction() as session:
        sweep_id = sweeps.add(session, sweeps.new(1, SweepSubmission.model_validate(body))).id
    experiment_id = submitted(database, note="a" * 100)
    both_have_read = threading.Barrier(2)

    def shorten() -> None:
        with database.transaction() as session:
            if kind == "sweep":
                sweep = session.get_one(Sweep, sweep_id)
                both_have_read.wait()
                sweeps.change(session, sweep, {"note": None}, FairShare())
            else:
                experiment = session.get_one(Experiment, experiment_id)
                both_have_read.wait()
                store.change(session, experiment, {"note": None}, FairShare())

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(shorten) for _ in range(2)]:
            done.result()
    counted(database)
    database.close()


def test_a_sweep_answered_from_the_cache_needs_space(admin: TestClient) -> None:
    database = database_of(admin)
    admin.post("/v1/experiments", json={"spec": ppca_spec()})
    claim = claim_next(database)
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    admin.patch("/v1/users/local", json={"max_bytes": 0})
    body = {"spec": ppca_spec(), "list": [{"seeds": ppca_spec()["seeds"]}]}
    refused(admin, "/v1/sweeps", body)

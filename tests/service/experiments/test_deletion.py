"""Objects deleted by their owner, or by age and quota, are hidden immediately and removed later."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import ForeignKey, func, select, update

from service.accounts.models import AuditEntry, User
from service.db.engine import Base, Database, now
from service.experiments import deletion
from service.experiments.models import Artifact, Block, Experiment, Held, Series, Wait
from service.fair_share import FairShare
from service.operations import retention
from service.queue import lease, ledger, states
from service.records.recording import record
from service.settings import Settings
from service.sweeps import store
from service.sweeps.models import SweepPoint
from service.sweeps.schemas import SweepSubmission
from service.vocabulary import TERMINAL, DesiredState, Status
from service.webhooks.models import Webhook
from tests.service.web.test_api import points
from tests.support import stored
from tests.support.attempts import claim_next, claimed, submitted
from tests.support.callers import bearer, database_of, member
from tests.support.kept_bytes import bytes_agree
from tests.support.ppca_spec import TRAINED, from_weights, ppca_spec
from tests.support.starting import release_held
from worker.housekeeping import Housekeeping


def submit(
    api: TestClient, spec: dict[str, Any] | None = None, headers: dict[str, str] | None = None
) -> str:
    answer = api.post(
        "/v1/experiments", json={"spec": spec or ppca_spec(), "cache": False}, headers=headers
    )
    assert answer.status_code == 202, answer.text
    experiment_id: str = answer.json()["id"]
    return experiment_id


def becomes(api: TestClient, experiment_id: str, status: Status, ago_s: float = 0.0) -> None:
    """Set the status; an experiment with a terminal status ended `ago_s` seconds ago."""
    values = {"status": status, "finished_at": now() - ago_s if status in TERMINAL else None}
    with database_of(api).transaction() as session:
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(**values))


def leave_file(api: TestClient, settings: Settings, experiment_id: str, size: int) -> Path:
    folder = settings.artifacts(experiment_id, 1)
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(bytes(size))
    columns = {"file": "weights.safetensors", "attempt": 1, "seq": 1, "media_type": "x"}
    with database_of(api).transaction() as session:
        session.add(Artifact(experiment_id=experiment_id, sha256="0", **columns))
    return folder


def rows(database: Database) -> dict[str, int]:
    """Number of rows of each table."""
    with database.snapshot() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
        }


def test_deleted_experiments_are_invisible(admin: TestClient) -> None:
    one = submit(admin, TRAINED)
    admin.patch(f"/v1/experiments/{one}", json={"visibility": "lab"})
    becomes(admin, one, Status.SUCCEEDED)
    own = bearer(member(admin)["key"])
    assert admin.get(f"/v1/experiments/{one}", headers=own).status_code == 200
    assert admin.delete(f"/v1/experiments/{one}").status_code == 204
    unknown = "0" * 32
    for headers in ({}, own):
        for path in ("", "/curves", "/metrics", "/artifacts", "/artifacts/a", "/curves/score"):
            answer = admin.get(f"/v1/experiments/{one}{path}", headers=headers)
            assert answer.status_code == 404
        for whose in ("mine", "lab"):
            listed = admin.get(f"/v1/experiments?whose={whose}", headers=headers)
            assert listed.json()["items"] == []
        refused = admin.post("/v1/experiments", json={"spec": from_weights(one)}, headers=headers)
        assert refused.status_code == 422
        nothing = admin.post(
            "/v1/experiments", json={"spec": from_weights(unknown)}, headers=headers
        )
        assert refused.json()["errors"] == nothing.json()["errors"]
    for method, verb in (("post", ":cancel"), ("post", ":retry"), ("delete", "")):
        answer = admin.request(method, f"/v1/experiments/{one}{verb}")
        assert answer.status_code == 404
    assert admin.patch(f"/v1/experiments/{one}", json={}).status_code == 404
    assert admin.get("/v1/experiments?whose=all").json()["items"] == []


def test_deleted_experiments_can_be_restored_while_their_files_are_kept(
    admin: TestClient, settings: Settings
) -> None:
    headers = bearer(member(admin)["key"])
    one = submit(admin, headers=headers)
    path = f"/v1/experiments/{one}"
    assert admin.delete(path, headers=headers).status_code == 204
    admin.post("/v1/users", json={"name": "bob"})
    other = bearer(admin.post("/v1/users/bob/keys", json={}).json()["key"])
    assert admin.post(f"{path}:undelete", headers=other).status_code == 404
    for _ in range(2):  # sent again it does no harm
        answer = admin.post(f"{path}:undelete", headers=headers)
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert admin.get(path, headers=headers).json()["id"] == one
    assert [line["action"] for line in audited(admin, one)].count("experiment.undeleted") == 1
    admin.delete(path, headers=headers)
    deleted_ago(admin, one, settings.purge_after_s - deletion.RESTORE_MARGIN_S - 60)
    assert admin.post(f"{path}:undelete").status_code == 200  # by an admin
    admin.delete(path, headers=headers)
    deleted_ago(admin, one, settings.purge_after_s - deletion.RESTORE_MARGIN_S)
    answer = admin.post(f"{path}:undelete", headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (410, "purged")
    assert admin.post(f"{path}:undelete", headers=other).status_code == 404
    assert admin.get(path, headers=headers).status_code == 404
    assert admin.post("/v1/experiments/%00:undelete").status_code == 404


def audited(api: TestClient, object_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/v1/audit?object_id={object_id}").json()["items"]
    return found


def deleted_ago(api: TestClient, experiment_id: str, ago_s: float) -> None:
    own = update(Experiment).where(Experiment.id == experiment_id)
    with database_of(api).transaction() as session:
        session.execute(own.values(deleted_at=now() - ago_s))


def test_running_experiments_must_be_cancelled_before_deletion(admin: TestClient) -> None:
    """Waiting ones are cancelled by it."""
    for status in Status:
        one = submit(admin)
        becomes(admin, one, status)
        answer = admin.delete(f"/v1/experiments/{one}")
        experiment = stored.row(database_of(admin), one)
        if status == Status.RUNNING:
            assert (answer.status_code, answer.json()["reason"]) == (409, "wrong_state")
            assert "cancel it first" in answer.json()["detail"]
            assert (experiment.status, experiment.desired_state) == ("running", "run")
            assert experiment.deleted_at is None
        else:
            assert answer.status_code == 204
            assert experiment.status == (status if status in TERMINAL else Status.CANCELLED)
            assert experiment.deleted_at is not None


def test_pinned_experiments_are_not_deleted(admin: TestClient, place: Settings) -> None:
    one = submit(admin)
    assert admin.patch(f"/v1/experiments/{one}", json={"pinned": True}).json()["pinned"]
    becomes(admin, one, Status.SUCCEEDED, ago_s=1000)
    leave_file(admin, place, one, 10)
    answer = admin.delete(f"/v1/experiments/{one}")
    assert (answer.status_code, answer.json()["reason"]) == (409, "pinned")
    strict = place.model_copy(update={"keep_s": 1.0, "keep_user_bytes": 1, "purge_after_s": 0.0})
    Housekeeping(database_of(admin), strict).clean()
    assert admin.get(f"/v1/experiments/{one}").status_code == 200
    admin.patch(f"/v1/experiments/{one}", json={"pinned": False})
    assert admin.delete(f"/v1/experiments/{one}").status_code == 204


def test_a_purge_deletes_all_rows_of_one_experiment_only(
    admin: TestClient, place: Settings
) -> None:
    database = database_of(admin)
    kept = submit(admin)
    becomes(admin, kept, Status.SUCCEEDED)
    kept_files = leave_file(admin, place, kept, 1)
    before = rows(database)
    one = submit(admin)
    claim = claim_next(database)
    batch = points(9)
    batch.add({"seq": 10, "record": "metric", "name": "lml", "labels": {}, "value": 0.0,
               "std_err": None})  # fmt: skip
    batch.add({"seq": 11, "record": "log", "level": "info", "message": "m"})
    batch.add({"seq": None, "record": "checkpoint", "file": "c", "sha256": "0", "after": 11})
    with database.transaction() as session:
        record(session, claim, batch, lease_s=60)
        ledger.end(session, one, claim.attempt, Status.FAILED)
    files = leave_file(admin, place, one, 1)
    more = {name for name, number in rows(database).items() if number > before[name]}
    assert more == {"experiments", "series", "blocks", "metrics", "events", "artifacts",
                    "checkpoints", "audit", "attempts", "usage"}  # fmt: skip
    becomes(admin, one, Status.FAILED)
    admin.delete(f"/v1/experiments/{one}")
    patient = place.model_copy(update={"purge_after_s": 60.0})
    Housekeeping(database, patient).clean()
    assert files.exists()
    Housekeeping(database, place.model_copy(update={"purge_after_s": 0.0})).clean()
    assert not files.exists()
    assert kept_files.exists()
    uncounted = {"audit": 0}
    assert rows(database) | uncounted == before | uncounted | {"totals": 1, "usage": 1}
    with database.snapshot() as session:
        assert bytes_agree(session)
    assert admin.get("/v1/audit?limit=1").json()["items"][0]["action"] == "experiment.purged"


@pytest.mark.parametrize("why", ["locked", "not folded", "awaited"])
def test_an_experiment_in_use_is_purged_later(lab: Settings, why: str) -> None:
    """Another transaction has locked it, its attempt is not added to the usage, or no look has
    found yet that it ended."""
    with closing(Database(lab.url)) as database:
        claim = claimed(database)
        if why == "awaited":
            waiting = submitted(database)
            stored.change(database, waiting, held=Held.AFTER)
            with database.transaction() as session:
                session.add(Wait(experiment_id=waiting, after_id=claim.experiment_id))
        with database.transaction() as session:
            lease.finish(session, claim, Status.SUCCEEDED)
            if why != "not folded":
                ledger.fold(session, lab.share)
        stored.change(database, claim.experiment_id, deleted_at=now())
        with ExitStack() as held:
            if why == "locked":
                other = held.enter_context(database.transaction())
                other.execute(select(Experiment.id).with_for_update())
            with database.transaction() as session:
                assert not deletion.purge(session, claim.experiment_id)
        release_held(database)
        with database.transaction() as session:
            ledger.fold(session, lab.share)
            assert deletion.purge(session, claim.experiment_id)
            assert session.get(Experiment, claim.experiment_id) is None


def test_every_table_with_experiment_rows_is_purged() -> None:
    """A new table that refers to experiments must be purged with them; otherwise a purge fails."""
    naming = {
        table.name
        for table in Base.metadata.tables.values()
        for column in table.columns
        for key in column.foreign_keys
        if isinstance(key, ForeignKey) and key.target_fullname == "experiments.id"
    }
    assert naming == {table.__tablename__ for table in deletion.RECORDS}
    assert {key.target_fullname for key in Block.__table__.foreign_keys} == {"series.id"}
    assert Series in deletion.RECORDS


@pytest.mark.parametrize("part", ["model", "baseline"])
def test_weights_are_purged_after_the_runs_that_need_them(
    admin: TestClient, place: Settings, part: str
) -> None:
    trained = submit(admin, TRAINED)
    becomes(admin, trained, Status.SUCCEEDED)
    files = leave_file(admin, place, trained, 1)
    if part == "model":
        later = submit(admin, from_weights(trained))
    else:
        base = {"family": "ppca", "latent_dim": 2, "init": "experiment", "experiment": trained}
        later = submit(admin, {**ppca_spec(), "baseline": base})
    admin.delete(f"/v1/experiments/{trained}")
    housekeeping = Housekeeping(database_of(admin), place.model_copy(update={"purge_after_s": 0.0}))
    for status in (Status.QUEUED, Status.RUNNING, Status.PAUSED):
        becomes(admin, later, status)
        housekeeping.clean()
        assert files.exists()
    becomes(admin, later, Status.FAILED)
    housekeeping.clean()
    assert not files.exists()


def test_old_experiments_are_deleted_by_age(admin: TestClient, place: Settings) -> None:
    ages = {Status.SUCCEEDED: 100.0, Status.FAILED: 100.0, Status.CANCELLED: 10.0}
    ids = {}
    for status in (*ages, Status.QUEUED, Status.RUNNING, Status.PAUSED):
        ids[status] = submit(admin)
        becomes(admin, ids[status], status, ago_s=ages.get(status, 0.0))
    housekeeping = Housekeeping(database_of(admin), place)  # off by default
    housekeeping.clean()
    assert len(admin.get("/v1/experiments").json()["items"]) == 6
    Housekeeping(database_of(admin), place.model_copy(update={"keep_s": 50.0})).clean()
    left = {one["status"] for one in admin.get("/v1/experiments").json()["items"]}
    assert left == {"cancelled", "queued", "running", "paused"}
    (entry, *_) = admin.get(f"/v1/audit?object_id={ids[Status.FAILED]}").json()["items"]
    assert (entry["actor"], entry["action"]) == ("housekeeping", "experiment.deleted")


def test_a_quota_deletes_the_oldest_experiments_of_each_user(
    admin: TestClient, place: Settings
) -> None:
    """Pinned files count against it, and are kept."""
    own = bearer(member(admin)["key"])
    anns, locals_ = ([submit(admin, headers=h) for _ in range(3)] for h in (own, {}))
    for number, one in enumerate((*anns, *locals_)):
        becomes(admin, one, Status.SUCCEEDED, ago_s=100.0 - number)
        leave_file(admin, place, one, 40 if one in anns else 30)
    limited = place.model_copy(update={"keep_user_bytes": 90})

    def planned() -> list[tuple[str, str, int]]:
        found = retention.planned(database_of(admin), limited)
        return [(one.experiment_id, one.owner, one.bytes) for one in found]

    assert planned() == [(anns[0], "ann", 40)]
    admin.patch(f"/v1/experiments/{anns[0]}", json={"pinned": True}, headers=own)
    assert planned() == [(anns[1], "ann", 40)]
    Housekeeping(database_of(admin), limited).clean()
    left = [one["id"] for one in admin.get("/v1/experiments?whose=all").json()["items"]]
    assert sorted(left) == sorted([anns[0], anns[2], *locals_])
    assert planned() == []


def test_a_dry_run_reports_what_it_would_free(
    admin: TestClient, place: Settings, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    old, deleted, fresh = (submit(admin) for _ in range(3))
    for one, ago_s in ((old, 200_000.0), (deleted, 0.0), (fresh, 0.0)):
        becomes(admin, one, Status.SUCCEEDED, ago_s)
        leave_file(admin, place, one, 1000)
    admin.delete(f"/v1/experiments/{deleted}")
    strict = place.model_copy(update={"keep_s": 86_400.0, "purge_after_s": 0.0})
    monkeypatch.setattr(retention, "begin", lambda: strict)

    def lines(*arguments: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["sweep", *arguments])
        retention.main()
        return capsys.readouterr().out.splitlines()

    before = rows(database_of(admin))
    deletes, _, purges, _ = lines("--dry-run")
    for line, verb in ((deletes, "would delete"), (purges, "would purge")):
        assert line.startswith(f"{verb} 1 experiment (1,000 bytes of files) of local")
    assert rows(database_of(admin)) == before
    assert place.all_artifacts(deleted).exists()
    assert lines()[0].startswith("deletes 1 experiment")
    assert not place.all_artifacts(deleted).exists()
    assert [one["id"] for one in admin.get("/v1/experiments").json()["items"]] == [fresh]
    assert lines("--dry-run")[0].startswith("would delete 0 experiments")


@pytest.fixture
def ended(either: Database) -> list[str]:
    """Seven experiments of two users that ended long ago, the last one first: the third is pinned,
    the fourth is deleted."""
    with either.transaction() as session:
        session.add(User(id=2, name="ann"))
    ids = [submitted(either) for _ in range(7)]
    with either.transaction() as session:
        for number, one in enumerate(ids):
            ended = {"status": Status.SUCCEEDED, "finished_at": 1000.0 - number // 2}
            owner = {"owner_id": 1 + number % 2, "pinned": number == 2}
            session.execute(update(Experiment).where(Experiment.id == one).values(**ended, **owner))
            columns = {"file": "a", "attempt": 1, "seq": 1, "media_type": "x", "sha256": "0"}
            session.add(Artifact(experiment_id=one, **columns))
        assert deletion.remove_ended(session, [ids[3]])
    return ids


def test_retention_works_in_pages(
    either: Database, ended: list[str], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same order for any number of due experiments, of which each is found once. The quota
    counts all files of a user, except deleted and aged ones."""
    monkeypatch.setattr(deletion, "PAGE", 2)
    monkeypatch.setattr(retention, "DELETED_AT_ONCE", 2)
    for one in ended:
        folder = settings.artifacts(one, 1)
        folder.mkdir(parents=True)
        (folder / "a").write_bytes(bytes(10))

    def planned(**limits: float) -> list[retention.Removal]:
        return [*retention.planned(either, settings.model_copy(update=limits))]

    assert [one.experiment_id for one in planned(keep_user_bytes=20)] == [ended[6], ended[4]]
    due = planned(keep_user_bytes=10)
    assert [one.experiment_id for one in due] == [ended[i] for i in (6, 4, 5, 0)]
    old = planned(keep_user_bytes=0, keep_s=60.0)
    assert [one.experiment_id for one in old] == [ended[i] for i in (6, 4, 0, 5, 1)]
    assert {one.owner for one in old} == {"local", "ann"}
    retention.delete(either, old)
    at_once = settings.model_copy(update={"purge_after_s": 0.0})
    deleted = [one.experiment_id for one in retention.purgeable(either, at_once)]
    assert sorted(deleted) == sorted(set(ended) - {ended[2]})


def cancelled(database: Database, ago_s: float = 90_000.0, **columns: Any) -> str:
    """An experiment that was cancelled before its first attempt."""
    experiment_id = submitted(database)
    with database.transaction() as session:
        states.request(session, experiment_id, DesiredState.CANCEL)
    ended = {"created_at": now() - ago_s - 10, "finished_at": now() - ago_s}
    stored.change(database, experiment_id, **ended | columns)
    return experiment_id


def purge_never_started(database: Database) -> set[str]:
    """Purge them, and return the experiments that are left."""
    retention.purge_never_started(database, retention.never_started(database))
    with database.snapshot() as session:
        assert bytes_agree(session)
        return set(session.scalars(select(Experiment.id)))


def test_experiments_cancelled_before_their_first_attempt_are_purged_after_a_day(
    either: Database,
) -> None:
    with either.transaction() as session:
        session.add(User(id=2, name="ann"))
        session.add(Webhook(id="h", owner_id=1, url="http://a", secret="s", statuses="cancelled"))
    before = rows(either)
    for _ in range(3):
        cancelled(either)
    cancelled(either, deleted_at=now())
    recent = cancelled(either, ago_s=86_000.0)
    assert rows(either)["deliveries"] == 5
    assert purge_never_started(either) == {recent}
    more = {name: number - before[name] for name, number in rows(either).items()}
    assert {name: number for name, number in more.items() if number} == {
        "experiments": 1, "events": 2, "deliveries": 1,
        "audit": 6,  # five submissions, and a line for the purge
    }  # fmt: skip
    with either.snapshot() as session:
        entry = session.scalars(select(AuditEntry).order_by(AuditEntry.id.desc())).first()
    assert entry is not None
    line = (entry.actor, entry.action, entry.object_id, entry.details)
    assert line == ("housekeeping", "experiments.purged", "local", {"experiments": 4})


def test_other_cancelled_experiments_stay(either: Database, settings: Settings) -> None:
    """Experiments that began, are pinned, belong to a sweep, were retried, or that others name."""
    body = {"spec": ppca_spec(), "grid": {"seeds": [[1], [2]]}}
    with either.transaction() as session:
        sweep = store.add(session, store.new(1, SweepSubmission.model_validate(body)), FairShare())
        sweep_id = sweep.id
    retried, named, point, awaited = (cancelled(either) for _ in range(4))
    stayed = {retried, named, point, awaited, cancelled(either, attempt=1),
              cancelled(either, pinned=True), cancelled(either, sweep_id=sweep_id)}  # fmt: skip
    with either.transaction() as session:
        session.add(SweepPoint(sweep_id=sweep_id, point=0, experiment_id=point))
    stayed.add(waiting := submitted(either))
    with either.transaction() as session:
        session.add(Wait(experiment_id=waiting, after_id=awaited))
    stored.change(either, (retry := submitted(either)), retry_of=retried)
    with either.snapshot() as session:
        during = session.get_one(Experiment, named).created_at + 1
    later = submitted(either, after=[named])
    failed = {"status": Status.FAILED, "finished_at": now()}
    stored.change(either, later, created_at=during, **failed)
    purged = cancelled(either)
    assert purged not in (left := purge_never_started(either))
    assert left == {*stayed, retry, later}


def test_an_experiment_that_is_retried_meanwhile_is_not_purged(either: Database) -> None:
    retried = cancelled(either)
    due = [*retention.never_started(either)]
    assert [removal.experiment_id for removal in due] == [retried]
    with either.transaction() as session:
        retry = stored.retry(session, session.get_one(Experiment, retried)).id
    retention.purge_never_started(either, due)
    with either.snapshot() as session:
        assert {retried, retry} == set(session.scalars(select(Experiment.id)))


def test_a_sweep_over_the_store_purges_them(database: Database, settings: Settings) -> None:
    experiment_id = cancelled(database)
    Housekeeping(database, settings).clean()
    with database.snapshot() as session:
        assert session.get(Experiment, experiment_id) is None

"""Files of an attempt belong to the experiment only after a fenced transaction."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.runtime.tensor_files import load_weights, weights_digest
from service.app import create_app
from service.db.engine import Database
from service.experiments import deletion
from service.experiments.models import Checkpoint, Event, Experiment, Series
from service.experiments.references import WEIGHTS, input_files
from service.queue import lease, ledger
from service.queue.lease import Claim, LeaseLost
from service.records import results
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claim_next, claimed, submitted
from tests.support.records import point
from tests.support.starting import run_next
from tests.support.stub import stub
from worker.slot import Slot
from worker.supervisor import Supervision


def lose(database: Database, claim: Claim) -> None:
    with database.transaction() as session:
        session.execute(update(Experiment).values(lease_expires_at=0))
        assert lease.expire(session, max_lost=3) == [(claim.experiment_id, "queued")]


def work_dir(database: Database, settings: Settings, claim: Claim) -> Path:
    """Folder into which the runner of this attempt writes."""
    runner = stub()
    folder = Path(Supervision(database, settings, claim, runner)._order(lambda: False)["work_dir"])
    runner.kill()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def artifact(content: bytes) -> Batch:
    batch = Batch()
    digest = hashlib.sha256(content).hexdigest()
    batch.add({"seq": 5, "record": "artifact", "file": WEIGHTS, "sha256": digest,
               "media_type": "application/octet-stream"})  # fmt: skip
    return batch


def write(database: Database, claim: Claim, batch: Batch) -> None:
    with database.transaction() as session:
        record(session, claim, batch, 60)


@pytest.fixture
def trained(database: Database, settings: Settings) -> str:
    """Experiment whose first attempt lost its lease and wrote its file after the second attempt had
    succeeded with its own file."""
    experiment_id = submitted(database)
    first = claim_next(database)
    lose(database, first)
    second = claim_next(database)
    (work_dir(database, settings, second) / WEIGHTS).write_bytes(b"of the second")
    write(database, second, artifact(b"of the second"))
    with database.transaction() as session:
        lease.finish(session, second, Status.SUCCEEDED)
    (work_dir(database, settings, first) / WEIGHTS).write_bytes(b"of the first")
    with pytest.raises(LeaseLost):
        write(database, first, artifact(b"of the first"))
    return experiment_id


def get(settings: Settings, experiment_id: str) -> Any:
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        return client.get(
            f"/v1/experiments/{experiment_id}/artifacts/{WEIGHTS}",
            headers={"Authorization": f"Bearer {key}"},
        )


def test_an_attempt_that_was_cut_off_overwrites_nothing(settings: Settings, trained: str) -> None:
    answer = get(settings, trained)
    assert (answer.status_code, answer.content) == (200, b"of the second")


@pytest.mark.parametrize(
    ("damage", "reason"), [("changed", "artifact_broken"), ("removed", "artifact_missing")]
)
def test_a_broken_artifact_is_not_served(
    settings: Settings, trained: str, damage: str, reason: str
) -> None:
    assert get(settings, trained).status_code == 200
    file = settings.artifacts(trained, 2) / WEIGHTS
    if damage == "changed":
        file.write_bytes(b"of a stranger")
    else:
        file.unlink()
    answer = get(settings, trained)
    assert (answer.status_code, answer.json()["reason"]) == (410, reason)
    assert WEIGHTS in answer.json()["detail"]


def test_an_artifact_from_before_attempts_had_folders(
    database: Database, settings: Settings, trained: str
) -> None:
    (settings.artifacts(trained, 0) / WEIGHTS).write_bytes(b"of the second")
    (settings.artifacts(trained, 2) / WEIGHTS).unlink()
    with database.transaction() as session:
        for one in results.artifacts(session, trained):
            one.attempt = 0
    assert get(settings, trained).content == b"of the second"


class Located:
    """Location of an input in the supervisor's message."""

    def __init__(self, file: str, sha256: str):
        self.file, self.sha256 = file, sha256


def located(database: Database, settings: Settings, spec: dict[str, Any]) -> dict[str, Located]:
    with database.snapshot() as session:
        return {
            name: Located(**found) for name, found in input_files(session, settings, spec).items()
        }


def test_weights_that_were_changed_start_no_run(
    database: Database, settings: Settings, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"model": {"experiment": trained}, "data": {}}
    monkeypatch.setattr(inputs, "_located", located(database, settings, spec))
    inputs.digest.cache_clear()
    assert weights_digest(trained) == hashlib.sha256(b"of the second").hexdigest()
    (settings.artifacts(trained, 2) / WEIGHTS).write_bytes(b"of a stranger")
    inputs.digest.cache_clear()
    with pytest.raises(RunError, match="SHA-256 differs"):
        load_weights("ppca", trained)


def checkpoint(after: int) -> Batch:
    batch = Batch()
    for seq in range(max(1, after - 1), after + 1):
        batch.add({"seq": seq, "record": "log", "level": "info", "message": "m"})
    batch.add({"seq": None, "record": "checkpoint", "file": f"{after}", "sha256": "0",
               "after": after})  # fmt: skip
    return batch


def test_two_checkpoints_of_an_experiment_are_kept(either: Database) -> None:
    """A run may be saved many times between two records."""
    first = claimed(either)
    for after, file in ((2, "2"), (4, "4a"), (4, "4b")):
        batch = checkpoint(after)
        assert batch.checkpoint is not None
        batch.checkpoint["file"] = file
        write(either, first, batch)
    lose(either, first)
    second = claim_next(either)
    assert [known.file for known in second.checkpoints] == ["1/4b", "1/4a"]
    write(either, second, checkpoint(6))
    with either.snapshot() as session:
        checkpoints = lease.checkpoints(session, second.experiment_id)
    assert [(known.after_seq, known.file) for known in checkpoints] == [(6, "2/6"), (4, "1/4b")]
    with either.transaction() as session:
        lease.finish(session, second, Status.SUCCEEDED)
    with either.snapshot() as session:
        assert session.scalar(select(func.count()).select_from(Checkpoint)) == 0


def test_files_of_earlier_attempts_are_deleted(database: Database, settings: Settings) -> None:
    """Once an attempt has two checkpoints of its own, those of others are not needed; at the end,
    every remaining file is named in a record."""
    experiment_id = submitted(database)
    first = claim_next(database)
    earlier = settings.checkpoints(experiment_id) / "1" / "1"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    write(database, first, checkpoint(1))
    lose(database, first)
    unrecorded = work_dir(database, settings, first)
    second = claim_next(database)
    runner = stub("--slow")
    supervision = Supervision(database, settings, second, runner)
    supervision._batch = checkpoint(2)
    supervision._flush()
    assert earlier.exists()
    supervision._batch = checkpoint(4)
    supervision._flush()
    assert not earlier.exists()
    runner.kill()
    lose(database, second)
    slot = Slot(database, settings, "test")
    assert unrecorded.exists()
    assert run_next(slot)
    slot.close()
    assert not unrecorded.exists()
    assert not settings.checkpoints(experiment_id).exists()


@pytest.mark.parametrize("is_purged", [False, True])
@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
def test_files_of_the_last_attempt_are_deleted(
    database: Database, settings: Settings, status: Status, is_purged: bool
) -> None:
    """A run that ended early has left files that no record names. Its experiment may have been
    purged since."""
    submitted(database)
    claim = claim_next(database)
    unrecorded = work_dir(database, settings, claim)
    slot = Slot(database, settings, "test")
    slot._clean_up(claim)
    assert unrecorded.exists()  # it still runs
    with database.transaction() as session:
        lease.finish(session, claim, status)
        ledger.fold(session, settings.share)
        if is_purged:
            deletion.remove_ended(session, [claim.experiment_id])
            assert deletion.purge(session, claim.experiment_id)
    slot._clean_up(claim)
    assert not unrecorded.exists()


def test_a_restarted_run_replaces_its_records(either: Database) -> None:
    experiment_id = submitted(either)
    first = claim_next(either)
    write(either, first, checkpoint(4))
    lose(either, first)
    second = claim_next(either)
    again = Batch()
    again.add({"seq": None, "record": "restart"})
    again.add({"seq": 1, "record": "log", "level": "info", "message": "anew"})
    for _ in range(2):  # the first answer may not have arrived
        write(either, second, again)
    with either.snapshot() as session:
        assert lease.checkpoints(session, experiment_id) == []
        logs = session.scalars(select(Event.data).where(Event.kind == "log")).all()
        assert [one["message"] for one in logs] == ["anew"]
        assert session.get_one(Experiment, experiment_id).last_seq == 1


def test_a_series_uses_a_single_id(either: Database) -> None:
    """A sequence that every batch takes from comes to its end."""
    claim = claimed(either)
    for seq in range(1, 6):
        batch = Batch()
        batch.add(point(seq) | {"labels": {}, "series": "score" if seq < 5 else "loss"})
        write(either, claim, batch)
    with either.snapshot() as session:
        first, second = session.scalars(select(Series.id).order_by(Series.id)).all()
    assert second == first + 1

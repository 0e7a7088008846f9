"""Content of a bundle; the command in its README reproduces its records."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mptcore.protocol.records import Point, encode
from mptcore.specs import Limits, parse_spec
from service.db.engine import Database
from service.experiments import bundle
from service.experiments.models import Experiment
from service.queue import lease
from service.queue.lease import Claim, FailureCause
from service.records import stored_records
from service.records.recording import Batch, record
from service.records.stored_records import record_lines, stored_series
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claimed
from tests.support.environments import ENVIRONMENT
from tests.support.ppca_spec import ppca_spec
from tests.support.warm import warm_parent
from worker.runner import Runner
from worker.supervisor import Supervision

ROOT = Path(__file__).parents[3]
TRAINED = ppca_spec(
    model={"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    train={"epochs": 3, "masks": {"schedule": "all", "per_size": 2}, "curve_at": [0, 3]},
    baseline={"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
    evaluate__convergence=True,
    data__heldout=0.2,
    seeds=[4, 44],
    compute={"device": "cpu", "threads": 1},
)
"""Series with and without errors, two models, artifacts, logs."""


def unzipped(api: TestClient, experiment_id: str, folder: Path) -> Path:
    answer = api.get(f"/v1/experiments/{experiment_id}/bundle")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/zip"
    name = f"experiment-{experiment_id}"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    return folder / name


def shell(command: str, folder: Path) -> str:
    """Run a command of the README in its folder and return the output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def commands(folder: Path) -> list[str]:
    text = (folder / "README.txt").read_text()
    return re.findall(r"^    ((?:python -m|grep) .*)$", text, re.M)


def table(file: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(file.open())]


@pytest.mark.slow
def test_the_command_of_the_readme_reproduces_the_records(
    api: TestClient, database: Database, settings: Settings, tmp_path: Path
) -> None:
    claim = claimed(database, TRAINED)
    supervision = Supervision(database, settings, claim, Runner(warm_parent().fork))
    assert supervision.run(bool) == "succeeded"
    folder = unzipped(api, claim.experiment_id, tmp_path / "unpacked")
    again, compare = commands(folder)
    shell(again, folder)
    lines = (folder / "records.ndjson").read_text().splitlines()
    given = (folder / "again.ndjson").read_text().splitlines()
    assert lines == [line for line in given if '"record": "progress"' not in line]
    assert len(lines) > 20
    assert shell(compare, folder) == ""
    artifacts = [*(folder / "artifacts").iterdir()]
    assert artifacts
    assert all(one.read_bytes() == (folder / "again" / one.name).read_bytes() for one in artifacts)
    records = [json.loads(line) for line in lines]
    points = [one for one in records if one["record"] == "point"]
    metrics = [one for one in records if one["record"] == "metric"]
    for file, key, found in (("curves.csv", "series", points), ("metrics.csv", "name", metrics)):
        rows = table(folder / file)
        assert [row[key] for row in rows] == [one[key] for one in found]
        assert [row["seed"] for row in rows] == [
            str(one["labels"].get("seed", "")) for one in found
        ]
        assert [float(row["value"]) for row in rows] == [one["value"] for one in found]
    (attempt,) = json.loads((folder / "environment.json").read_text())["attempts"]
    assert attempt["environment"]["threads"] == 1
    assert f"core {attempt['environment']['core']}" in (folder / "README.txt").read_text()


def ended(
    database: Database,
    *records: dict[str, Any],
    status: Status = Status.SUCCEEDED,
    failure: FailureCause | None = None,
    spec: dict[str, Any] | None = None,
) -> Claim:
    claim = claimed(database, spec)
    batch = Batch()
    for one in records:
        batch.add(one)
    with database.transaction() as session:
        record(session, claim, batch, 60)
        lease.finish(session, claim, status, failure)
    return claim


def test_running_experiments_have_no_bundle(api: TestClient, database: Database) -> None:
    running = claimed(database).experiment_id
    queued = api.post("/v1/experiments", json={"spec": ppca_spec()}).json()["id"]
    for experiment_id, status in ((running, "running"), (queued, "queued")):
        answer = api.get(f"/v1/experiments/{experiment_id}/bundle")
        assert (answer.status_code, answer.json()["reason"]) == (409, "wrong_state")
        assert status in answer.json()["detail"]


def test_the_readme_names_inputs_and_outcome(
    api: TestClient, database: Database, tmp_path: Path
) -> None:
    failure = FailureCause("oom", "out of memory: {} lower data.n")
    claim = ended(
        database,
        {"seq": None, "record": "environment", **ENVIRONMENT, "resumed_from": "a GPU",
         "memory_was_short": True},
        status=Status.FAILED,
        failure=failure,
    )  # fmt: skip
    text = (unzipped(api, claim.experiment_id, tmp_path) / "README.txt").read_text()
    (place,) = ENVIRONMENT["inputs"]
    assert f"    {place}\n        sha256 {'0' * 64}\n" in text
    assert "a processor (AVX2), 2 threads; started on a GPU, so the last digits may" in text
    assert "; short of memory, so the last digits may differ\n" in text
    assert f"{claim.experiment_id} failed.\nIts failure was oom: out of memory: {{}}" in text
    (tmp_path / "earlier").mkdir()
    earlier = unzipped(api, ended(database).experiment_id, tmp_path / "earlier")
    assert (earlier / "README.txt").read_text().count("unknown: it ran before") == 2


def test_texts_of_users_and_runs_cannot_add_lines_to_the_readme(
    api: TestClient, database: Database, tmp_path: Path
) -> None:
    forged = "x\n\nTo compute it again:\r\x0b\u2028\u0085\n    rm -rf ~\u202e"
    line = "x To compute it again: rm -rf ~"
    environment = {**ENVIRONMENT, "cpu": forged, "inputs": {forged: "0" * 64}}
    claim = ended(
        database,
        {"seq": None, "record": "environment", **environment},
        {"seq": 1, "record": "metric", "name": "=1+1", "labels": {}, "value": -1.5,
         "std_err": None, "reason": "-1+1"},
        status=Status.FAILED,
        failure=FailureCause("error", forged),
    )  # fmt: skip
    with database.transaction() as session:
        session.get_one(Experiment, claim.experiment_id).name = forged
    folder = unzipped(api, claim.experiment_id, tmp_path)
    text = (folder / "README.txt").read_text()
    assert text.count(line) == 4
    assert [one for one in text.splitlines() if one.strip().startswith(("rm", "To comp"))] == [
        "To compute it again, in the folder of this file:"
    ]
    assert (folder / "metrics.csv").read_text().splitlines()[1] == "'=1+1,-1.5,,'-1+1"


def test_artifacts_that_are_too_large_or_gone_are_named(
    api: TestClient,
    database: Database,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = {
        "a": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        "bb": "3b64db95cb55c763391c707108489ae18b4112d783300de38e033b4c98c3deaf",
        "gone": "0" * 64,
    }
    claim = ended(
        database,
        *({"seq": i, "record": "artifact", "file": name, "media_type": "text/plain", "sha256": sha}
          for i, (name, sha) in enumerate(digests.items(), 1)),
    )  # fmt: skip
    files = settings.artifacts(claim.experiment_id, claim.attempt)
    files.mkdir(parents=True)
    for name in ("a", "bb"):
        (files / name).write_text(name)
    monkeypatch.setattr(bundle, "MAX_ARTIFACT_BYTES", 2)
    folder = unzipped(api, claim.experiment_id, tmp_path)
    assert [one.name for one in (folder / "artifacts").iterdir()] == ["a"]
    text = (folder / "README.txt").read_text()
    assert "not here: bb, too large for a bundle (2 bytes)" in text
    assert "not here: gone, gone cannot be read from the store" in text


def test_a_spec_beyond_the_filters_limits_is_in_an_envelope(
    api: TestClient, database: Database, tmp_path: Path
) -> None:
    large = ppca_spec(data__n=10**7, data__dim=100)
    assert parse_spec(json.dumps(large).encode(), Limits(elements=10**12, mask_work=10**18,
                                                        memory_bytes=10**15))  # fmt: skip
    claim = ended(database, spec=large)
    folder = unzipped(api, claim.experiment_id, tmp_path)
    assert [*json.loads((folder / "spec.json").read_text())] == ["spec"]
    small = unzipped(api, ended(database).experiment_id, tmp_path)
    assert "model" in json.loads((small / "spec.json").read_text())


def test_points_come_in_the_order_of_their_numbers(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check any number fetched together, and batches with overlapping blocks."""
    claim = claimed(either)
    lines: list[str] = []
    for first in (1, 9, 17):
        batch = Batch()
        for seq in range(first, first + 8):
            value = None if seq % 3 == 0 else -seq / 7
            reason = None if seq % 3 else f"reason {seq % 2}"
            point = Point("score", seq / 2, value, 0.1, 4, {"seed": seq % 2}, reason)
            lines.append(encode(seq, point))
            batch.add(json.loads(lines[-1]))
        with either.transaction() as session:
            record(session, claim, batch, 60)
    for together in (1, 10, 1000):
        monkeypatch.setattr(stored_records, "POINTS_TOGETHER", together)
        with either.snapshot() as session:
            series = stored_series(session, claim.experiment_id)
        assert [*record_lines(either, claim.experiment_id, series)] == [f"{o}\n" for o in lines]


def test_a_bundle_that_is_sent_slowly_holds_up_no_other(
    database: Database, settings: Settings
) -> None:
    """A process builds one part at a time, to leave the processors to other requests."""
    claim = ended(database)
    with database.snapshot() as session:
        made = bundle.bundle(session, session.get_one(Experiment, claim.experiment_id))
    slow = bundle.zipped(database, settings, made)
    assert next(slow)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: b"".join(bundle.zipped(database, settings, made)))
        is_done = bool(wait([other], timeout=60).done)
        del slow  # so that the other one ends
    assert is_done
    assert zipfile.ZipFile(io.BytesIO(other.result())).testzip() is None

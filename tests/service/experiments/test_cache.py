"""An earlier result answers an equal submission, and only an equal one."""

import os
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from mptcore.specs import validate_spec
from service.accounts.models import User
from service.app import create_app
from service.experiments import cache
from service.experiments.cache import fingerprint
from service.experiments.inputs import CURE, OFFLINE, Inputs
from service.experiments.models import Experiment
from service.queue import lease
from service.queue.lease import FailureCause
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claim_next
from tests.support.callers import bearer, database_of, member
from tests.support.ppca_spec import ppca_spec


def post(api: TestClient, spec: Any = None, headers: Any = None, **beside: Any) -> dict[str, Any]:
    body = {"spec": spec or ppca_spec(), **beside}
    answer = api.post("/v1/experiments", json=body, headers=headers)
    found: dict[str, Any] = answer.json()
    assert answer.status_code == (200 if found.get("cached_from") else 202), answer.text
    return found


def computed(
    api: TestClient, status: Status = Status.SUCCEEDED, headers: Any = None, **beside: Any
) -> str:
    """An experiment that has run."""
    made: str = post(api, headers=headers, cache=False, **beside)["id"]
    assert finish_next(api, status) == made
    return made


def finish_next(api: TestClient, status: Status = Status.SUCCEEDED) -> str:
    cause = None if status == Status.SUCCEEDED else FailureCause("error", "it broke")
    claim = claim_next(database_of(api))
    with database_of(api).transaction() as session:
        lease.finish(session, claim, status, cause)
    return claim.experiment_id


def count(api: TestClient) -> int:
    with database_of(api).snapshot() as session:
        return session.scalar(select(func.count()).select_from(Experiment)) or 0


def test_an_equal_spec_is_answered_from_the_cache(admin: TestClient) -> None:
    one = computed(admin, name="first")
    body = {"spec": ppca_spec(), "name": "first", "priority": 5}
    answer = admin.post("/v1/experiments", json=body)
    assert answer.status_code == 200
    assert answer.headers["Location"] == f"/v1/experiments/{one}"
    found = answer.json()
    assert (found["id"], found["cached_from"], found["name"]) == (one, one, "first")
    assert (found["status"], found["terminal"]) == ("succeeded", True)
    assert admin.get(f"/v1/experiments/{one}").json()["cached_from"] is None
    spelled_out = ppca_spec(data__noise="isotropic")  # a default that is written out
    assert post(admin, spelled_out)["cached_from"] == one
    assert count(admin) == 1


@pytest.mark.parametrize(
    "said", [{"name": "b"}, {"tags": ["b"]}, {"note": "b"}, {"visibility": "lab"}]
)
@pytest.mark.parametrize("route", ["one", "batch", "validate"])
def test_a_different_name_or_sharing_is_not_answered_from_the_cache(
    admin: TestClient, said: dict[str, Any], route: str
) -> None:
    """An equal experiment with another name, or not shared, does not answer."""
    of_before: dict[str, Any] = {"name": "a", "tags": ["a"], "note": "a"}
    one = computed(admin, **of_before)
    for beside, answers in (({}, True), (of_before, True), ({**of_before, **said}, False)):
        body = {"spec": ppca_spec(), **beside}
        if route == "batch":
            made = admin.post("/v1/experiments:batch", json={"experiments": [body]}).json()["items"]
            found = made[0]["cached_from"]
        else:
            path = "/v1/experiments" + (":validate" if route == "validate" else "")
            found = admin.post(path, json=body).json()["cached_from"]
        assert found == (one if answers else None)


def test_of_several_results_own_ones_and_those_of_the_same_name_answer(admin: TestClient) -> None:
    first, second = (computed(admin, name=name, visibility="lab") for name in ("a", "b"))
    assert post(admin, name="a", visibility="lab")["cached_from"] == first
    assert post(admin)["cached_from"] == second
    theirs = bearer(member(admin)["key"])
    own = computed(admin, headers=theirs)
    computed(admin, name="c", visibility="lab")
    assert post(admin, headers=theirs)["cached_from"] == own


def test_a_different_spec_is_computed(admin: TestClient) -> None:
    one = computed(admin)
    assert post(admin, ppca_spec(seeds=[5]))["cached_from"] is None
    assert post(admin, ppca_spec(compute__threads=2))["cached_from"] is None
    again = post(admin, cache=False)
    assert (again["cached_from"], again["id"] != one) == (None, True)


def test_failed_or_running_experiments_are_not_cached(admin: TestClient) -> None:
    computed(admin, Status.FAILED)
    waiting = post(admin)["id"]
    other = post(admin)
    assert (other["cached_from"], other["id"] != waiting) == (None, True)


def test_only_readable_results_are_cached(admin: TestClient) -> None:
    theirs = bearer(member(admin)["key"])
    hidden = computed(admin, headers=theirs)
    assert post(admin)["cached_from"] is None  # an admin, too, has no private result of another's
    with database_of(admin).transaction() as session:
        session.execute(update(Experiment).where(Experiment.id != hidden).values(priority=-9))
    admin.patch(f"/v1/experiments/{hidden}", json={"visibility": "lab"}, headers=theirs)
    assert post(admin)["cached_from"] == hidden
    admin.patch(f"/v1/experiments/{hidden}", json={"visibility": "private"}, headers=theirs)
    assert post(admin)["cached_from"] is None
    assert post(admin, headers=theirs)["cached_from"] == hidden
    admin.delete(f"/v1/experiments/{hidden}", headers=theirs)
    assert post(admin, headers=theirs)["cached_from"] is None


def test_a_hit_costs_no_quota(admin: TestClient) -> None:
    one = computed(admin)
    post(admin, cache=False)
    with database_of(admin).transaction() as session:
        session.execute(update(User).where(User.id == 1).values(max_submitted=1))
    assert post(admin)["cached_from"] == one
    refused = admin.post("/v1/experiments", json={"spec": ppca_spec(seeds=[9])})
    assert refused.json()["reason"] == "limit_reached"


def test_batches_and_sweeps_are_partly_answered_from_the_cache(admin: TestClient) -> None:
    one = computed(admin)
    body = {"experiments": [{"spec": ppca_spec(seeds=[s])} for s in (4, 5)]}
    for _ in range(2):  # a replay says the same
        items = admin.post(
            "/v1/experiments:batch", json=body, headers={"Idempotency-Key": "b"}
        ).json()["items"]
        assert [item["cached_from"] for item in items] == [one, None]
    sweep = {"spec": ppca_spec(), "grid": {"seeds": [[4], [6]]}}
    made = admin.post("/v1/sweeps", json=sweep).json()
    assert made["counts"] | {"succeeded": 1, "queued": 1} == made["counts"]
    table = admin.get(made["urls"]["table"]).json()["items"]
    assert table[0]["experiment_id"] == one
    anew = admin.post("/v1/sweeps", json={**sweep, "cache": False}).json()
    assert anew["counts"]["queued"] == 2
    # Cached results do not belong to the sweep: it neither deletes nor shares them.
    admin.patch(made["urls"]["self"], json={"visibility": "lab"})
    assert admin.delete(made["urls"]["self"]).status_code == 204
    found = admin.get(f"/v1/experiments/{one}").json()
    assert (found["visibility"], found["sweep"]) == ("private", None)


def test_results_of_another_core_version_are_not_used(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those of workers that were older than the service, while the lab was upgraded."""
    computed(admin)
    with monkeypatch.context() as other:
        other.setattr(cache, "code_digest", lambda family: "f" * 16)
        assert post(admin)["cached_from"] is None
    finish_next(admin)
    monkeypatch.setattr(cache, "code_digest", lambda family: "f" * 16)
    assert post(admin)["cached_from"] is None


def test_a_changed_input_file_changes_the_cache_key(tmp_path: Path) -> None:
    """Check also a file whose content, size and time of change are restored."""
    file = tmp_path / "a.txt"
    file.write_text("one")
    before, stat = fingerprint([file]), file.stat()
    assert before is not None
    assert fingerprint([file]) == before
    file.write_text("two")
    file.write_text("one")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint([file]) != before
    assert fingerprint([tmp_path / "b.txt"]) is None
    assert fingerprint([]) is None


TEXT = {
    "model": {"family": "masked_lm", "checkpoint": "tiny"},
    "data": {"source": "text", "file": "a.txt"},
}


@pytest.fixture
def folders(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Folders of a service that has the data and checkpoints of the lab."""
    for name in ("models/tiny", "models/bert-base", "data/text", "data/glue/cola"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("tiny", "bert-base"):
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            (tmp_path / "models" / name / file).write_text("{}")
    (tmp_path / "data/text/a.txt").write_text("a\n")
    (tmp_path / "data/glue/cola/validation.jsonl").write_text("{}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    seen = {"data_dir": tmp_path / "data", "models_dir": tmp_path / "models"}
    return settings.model_copy(update=seen)


@pytest.fixture
def seeing(folders: Settings) -> Any:
    key = folders.key_file.read_text().strip()
    with TestClient(create_app(folders), headers=bearer(key)) as api:
        yield api


def test_a_changed_text_or_checkpoint_is_computed_again(
    seeing: TestClient, folders: Settings
) -> None:
    """Also that of the baseline."""
    spec = {**TEXT, "baseline": {"family": "masked_lm", "checkpoint": "bert-base"}}
    one = computed(seeing, spec=spec)
    assert folders.data_dir is not None
    assert folders.models_dir is not None
    for file in (
        folders.data_dir / "text/a.txt",
        folders.models_dir / "tiny/config.json",
        folders.models_dir / "bert-base/config.json",
    ):
        assert post(seeing, spec)["cached_from"] == one
        file.write_text(file.read_text())
        assert post(seeing, spec)["cached_from"] is None
        one = finish_next(seeing)


def test_specs_with_invisible_inputs_have_no_cache_key(
    settings: Settings, folders: Settings
) -> None:
    spec = validate_spec(TEXT)
    assert Inputs(settings).files(spec) is None
    assert len(Inputs(folders).files(spec) or ()) == 4
    hub = validate_spec({**TEXT, "model": {"family": "masked_lm", "checkpoint": "of-the-hub"}})
    assert Inputs(folders).files(hub) is None
    glue = {"source": "glue", "subset": "rte", "split": "test"}
    assert Inputs(folders).files(validate_spec({**TEXT, "data": glue})) is None
    assert Inputs(folders).files(validate_spec(ppca_spec())) == []


@pytest.mark.parametrize(
    ("part", "value", "pointer", "words"),
    [
        ("model", {"family": "masked_lm", "checkpoint": "bert-bas"}, "/model/checkpoint",
         ["did you mean bert-base?", "there are bert-base, tiny", OFFLINE, CURE]),
        ("baseline", {"family": "masked_lm", "checkpoint": "xyz"}, "/baseline/checkpoint",
         ["no checkpoint xyz", "there are bert-base, tiny"]),
        ("data", {"source": "text", "file": "b.txt"}, "/data/file",
         ["no text b.txt", "there are a.txt"]),
        ("data", {"source": "glue", "subset": "cola", "split": "test"}, "/data/subset",
         ["cola/test", "there are cola/validation"]),
    ],
)  # fmt: skip
def test_missing_inputs_are_refused_with_the_available_names(
    seeing: TestClient, part: str, value: Any, pointer: str, words: list[str]
) -> None:
    for path in ("/v1/experiments", "/v1/experiments:validate"):
        answer = seeing.post(path, json={"spec": {**TEXT, part: value}})
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["pointer"] == f"/spec{pointer}"
        assert [one for one in words if one not in error["detail"]] == []


def test_missing_images_are_refused(
    seeing: TestClient, folders: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"model": {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}}
    body = {"spec": {**spec, "data": {"source": "mnist"}}}
    answer = seeing.post("/v1/experiments", json=body)
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/spec/data/source"
    for words in ("no data set mnist", f"{folders.data_dir} (MPT_DATA_DIR)", "MPT_ALLOW_DOWNLOAD"):
        assert words in error["detail"]
    monkeypatch.setenv("MPT_ALLOW_DOWNLOAD", "1")
    assert seeing.post("/v1/experiments", json=body).status_code == 202
    monkeypatch.delenv("MPT_ALLOW_DOWNLOAD")
    assert folders.data_dir is not None
    raw = folders.data_dir / "MNIST/raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(b"")
    assert seeing.post("/v1/experiments", json=body).status_code == 202


def test_inputs_that_cannot_be_checked_are_accepted(
    seeing: TestClient, admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check without the folders, and for a file that may be on a hub."""
    unknown = {**TEXT, "model": {"family": "masked_lm", "checkpoint": "bert-bas"}}
    text = {**TEXT, "data": {"source": "text", "file": "b.txt"}}
    for spec in (unknown, text):
        assert admin.post("/v1/experiments", json={"spec": spec}).status_code == 202
    for value, status in (("on", 422), ("Yes", 422), ("true", 422), ("0", 202)):
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        assert seeing.post("/v1/experiments", json={"spec": unknown}).status_code == status
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert seeing.post("/v1/experiments", json={"spec": unknown}).status_code == 202
    assert seeing.post("/v1/experiments", json={"spec": text}).status_code == 422


def test_a_checkpoint_in_the_hub_cache_is_accepted(seeing: TestClient, folders: Settings) -> None:
    spec = {**TEXT, "model": {"family": "masked_lm", "checkpoint": "org/model"}}
    assert seeing.post("/v1/experiments", json={"spec": spec}).status_code == 422
    (Path(os.environ["HF_HOME"]) / "hub/models--org--model").mkdir(parents=True)
    assert seeing.post("/v1/experiments", json={"spec": spec}).status_code == 202

"""Uploads through the API: refused ones leave nothing, stored ones belong to their owner."""

import errno
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.datasets.retention import sweep
from service.db.engine import Database
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec
from tests.support.uploads import GOOD, npy, post, stored


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


INFINITE = GOOD.copy()
INFINITE[3, 2] = np.inf


def upload_spec(dataset: str, **changes: Any) -> dict[str, Any]:
    model = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
    data = {"source": "upload", "dataset": dataset, "n": 10, "dim": 4}
    return ppca_spec(model=model, data={**data, **changes})


def test_upload_list_use_delete(api: TestClient, settings: Settings) -> None:
    answer = post(api, "good.npy", npy(GOOD))
    assert answer.status_code == 201
    made = answer.json()
    assert (made["n"], made["dim"], made["format"]) == (10, 4, "npy")
    contents = {"arrays", "columns", "missing", "header", "ids", "left_out", "warnings", "summary"}
    summary = {name: made[name] for name in made.keys() - contents}
    assert api.get("/v1/datasets").json()["items"] == [summary]
    assert api.get(f"/v1/datasets/{made['id']}").json() == made
    accepted = api.post("/v1/experiments", json={"spec": upload_spec(made["id"])})
    assert accepted.status_code == 202
    assert api.delete(f"/v1/datasets/{made['id']}").status_code == 204
    assert not settings.datasets(made["id"]).exists()
    assert api.get("/v1/datasets").json()["items"] == []
    assert api.delete(f"/v1/datasets/{made['id']}").status_code == 404


@pytest.mark.usefixtures("inspected_here")
def test_the_same_bytes_deleted_while_they_came_again(
    api: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unique index reports it, but it is gone when it is read."""
    first = post(api, "a.npy", npy(GOOD)).json()
    monkeypatch.setattr("service.datasets.store.lock_same", lambda *_: None)
    refused = post(api, "a.npy", npy(GOOD))
    assert (refused.status_code, refused.json()["reason"]) == (409, "deleted_meanwhile")
    assert "upload them again" in refused.json()["detail"]
    assert stored(settings) == [settings.datasets(first["id"])]


@pytest.mark.usefixtures("inspected_here")
def test_retention_ends_a_delete_that_was_cut_off(
    api: TestClient, settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends between the commit and the removal of the file."""
    path = f"/v1/datasets/{post(api, 'a.npy', npy(GOOD)).json()['id']}"
    with monkeypatch.context() as cut_off:
        cut_off.setattr("shutil.rmtree", lambda *_, **__: None)
        assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404
    for folder in stored(settings):
        for part in (folder, *folder.iterdir()):
            os.utime(part, (0, 0))
    sweep(database, settings)
    assert stored(settings) == []


@pytest.mark.usefixtures("inspected_here")
def test_an_upload_is_deleted_from_a_full_disk(
    api: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/datasets/{post(api, 'a.npy', npy(GOOD)).json()['id']}"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    assert api.delete(path).status_code == 204
    assert stored(settings) == []


def test_one_array_of_many(api: TestClient) -> None:
    made = post(api, "two.npz", npz(a=GOOD[:, :3], b=GOOD)).json()
    assert made["arrays"] == {"a": [10, 3], "b": [10, 4]}
    spec = upload_spec(made["id"], array="b")
    assert api.post("/v1/experiments", json={"spec": spec}).status_code == 202


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.usefixtures("inspected_here")
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", lambda: npy(INFINITE), "array[3, 2] is inf"),
        ("a.npy", pickled, "readable|real numbers"),
        ("a.npy", lambda: b"PK\x03\x04 not an array", "not a .npy file"),
        ("a.npz", lambda: b"garbage", "not a .npz file: it begins with b'garbage'"),
        ("a.csv", lambda: b"x,y\n1,one\n", "column y is not numbers"),
        ("a.parquet", lambda: b"PAR1", "not a readable .parquet"),
        ("a.npy", lambda: npy(np.zeros(3)), "N observations"),
        ("a.npy", lambda: b"", "not a .npy file"),
    ],
)
def test_a_refused_upload_leaves_nothing(
    api: TestClient, settings: Settings, name: str, content: Callable[[], bytes], words: str
) -> None:
    answer = post(api, name, content())
    assert answer.status_code == 422
    assert any(word in answer.json()["detail"] for word in words.split("|")), answer.json()
    assert stored(settings) == []
    assert api.get("/v1/datasets").json()["items"] == []


@pytest.mark.parametrize("name", ["a.pkl", "../a.npy", "a", "a/b.npy", "a.npy\n", ".npy"])
def test_a_bad_name(api: TestClient, name: str) -> None:
    answer = post(api, name, npy(GOOD))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/query/name"


@pytest.mark.parametrize("declared", [True, False])
def test_a_file_over_the_limit_is_refused(settings: Settings, declared: bool) -> None:
    content = npy(GOOD)
    small = settings.model_copy(update={"max_upload_bytes": len(content) - 1})
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(small), headers={"Authorization": f"Bearer {key}"}) as api:
        body: Any = content if declared else iter([content])
        answer = api.post("/v1/datasets?name=a.npy", content=body)
    assert answer.status_code == 413
    assert f"at most {len(content) - 1} bytes" in answer.json()["detail"]
    assert stored(settings) == []


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


TEXTS: list[tuple[str, bytes, int, list[str] | None]] = [
    ("a.txt", "the cat sat\n\nона ушла\n".encode(), 2, None),
    ("a.jsonl", b'{"text": "the cat"}\n{"text": "a dog", "stars": 2}\n', 2, ["text"]),
    ("a.parquet", parquet(text=["the cat", "a dog", None], stars=[1, 2, 3]), 2, ["text"]),
]


@pytest.mark.parametrize(("name", "content", "n", "columns"), TEXTS)
def test_text_is_uploaded(
    api: TestClient, name: str, content: bytes, n: int, columns: list[str] | None
) -> None:
    answer = post(api, name, content)
    assert answer.status_code == 201, answer.json()
    made = answer.json()
    assert (made["n"], made["dim"], made["columns"]) == (n, None, columns)
    model = {"family": "masked_lm", "checkpoint": "any"}
    data = {"source": "text", "dataset": made["id"]}
    accepted = api.post("/v1/experiments", json={"spec": {"model": model, "data": data}})
    assert accepted.status_code == 202, accepted.json()
    if columns:
        spec = {"model": model, "data": {**data, "column": "body"}}
        errors = api.post("/v1/experiments", json={"spec": spec}).json()["errors"]
        assert errors[0]["pointer"] == "/spec/data/column"
        assert "are text; not body" in errors[0]["detail"]
    numbers = api.post("/v1/experiments", json={"spec": upload_spec(made["id"])}).json()
    assert "holds text" in numbers["errors"][0]["detail"]


@pytest.mark.usefixtures("inspected_here")
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("a.txt", b"\n \n", "no text in it"),
        ("a.jsonl", b'{"text": "a"}\nnot json\n', "line 2 is not JSON"),
        ("a.jsonl", b"[1, 2]\n", "line 1 is not a JSON object"),
        ("a.jsonl", b'{"n": 1}\n', "none of its columns holds text"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("a.jsonl", rb'{"\ud800": "x"}', "half of a surrogate pair"),
        ("a.parquet", b"PAR1 and no more", "not a readable .parquet file"),
    ],
)
def test_a_file_that_is_not_text_is_refused(
    api: TestClient, settings: Settings, name: str, content: bytes, words: str
) -> None:
    answer = post(api, name, content)
    assert answer.status_code == 422
    assert words in answer.json()["errors"][0]["detail"]
    assert stored(settings) == []


def test_a_file_that_promises_more_than_memory_is_refused(api: TestClient) -> None:
    """An archive of kilobytes that unpacks to eight gigabytes."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(np.zeros((1, 2)))
    header["shape"] = (2**29, 2)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("a.npy", "w", force_zip64=True) as entry:
            np.lib.format.write_array_header_1_0(entry, header)
            entry.write(bytes(2**10))
    answer = post(api, "bomb.npz", file.getvalue())
    assert answer.status_code == 422, answer.json()
    assert "1073741824 cells" in answer.json()["detail"]

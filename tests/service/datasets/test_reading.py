"""Options of an upload: what was read is answered, stored, and read again by runs."""

import gzip
import json
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from mptcore.data.uploads import uploaded
from mptcore.protocol.orders import Input
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.specs import UploadData
from service.db.engine import Database
from service.experiments.references import input_files
from service.settings import Settings
from tests.support.uploads import npy

pytestmark = pytest.mark.usefixtures("inspected_here")

TABLE = "id;batch;400;410;420\n" + "".join(
    f"s{i};x;{i},25;{i * i % 7},5;{i * 5 % 11},125\n" for i in range(1, 9)
)
OPTIONS = {"sep": ";", "decimal": ",", "index": ["id"], "drop_non_numeric": "yes"}


def upload(api: TestClient, name: str, content: bytes | str, **options: Any) -> Any:
    return api.post("/v1/datasets", params={"name": name, **options}, content=content)


def problems(answer: Any) -> dict[str, str]:
    assert answer.status_code == 422, answer.text
    return {one["pointer"]: one["detail"] for one in answer.json()["errors"]}


def test_the_answer_says_what_was_read(api: TestClient, settings: Settings) -> None:
    answer = upload(api, "lab.csv", TABLE, **OPTIONS)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["summary"] == "8 rows × 3 columns; header: first line; ids: id; left out: batch"
    assert (made["n"], made["dim"], made["columns"]) == (8, 3, ["400", "410", "420"])
    assert (made["header"], made["ids"]) == (True, ["id"])
    assert made["left_out"] == {"batch": "not numbers: line 2 is 'x', and 7 more"}
    assert api.get(f"/v1/datasets/{made['id']}").json() == made
    kept = json.loads((settings.datasets(made["id"]) / "reading.json").read_text())
    assert kept == {
        "header": True, "sep": ";", "decimal": ",", "index": ["id"], "drop_non_numeric": True,
    }  # fmt: skip


def test_the_same_bytes_read_in_another_way_are_another_data_set(api: TestClient) -> None:
    text = "2019,2020,2021\n4,1,9\n5,6,2\n"
    assert "header=yes or header=no" in problems(upload(api, "y.csv", text))[""]
    names = upload(api, "y.csv", text, header="yes")
    data = upload(api, "y.csv", text, header="no")
    assert (names.status_code, data.status_code) == (201, 201)
    assert (names.json()["n"], data.json()["n"]) == (2, 3)
    assert names.json()["sha256"] == data.json()["sha256"]
    again = upload(api, "z.csv", text, header="true")
    assert (again.status_code, again.json()) == (200, names.json())
    keys = []
    for made in (names, data):
        spec = {
            "model": {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"},
            "data": {"source": "upload", "dataset": made.json()["id"]},
            "evaluate": {"masks": {"schedule": "all", "per_size": 1}},
        }
        body = api.post("/v1/experiments:validate", json={"spec": spec})
        keys.append(body.json()["spec"]["data"]["n"])
    assert keys == [2, 3]


def test_a_repeated_upload_restores_its_options(api: TestClient, settings: Settings) -> None:
    made = upload(api, "lab.csv", TABLE, **OPTIONS).json()
    file = settings.datasets(made["id"]) / "reading.json"
    content = file.read_text()
    file.unlink()
    assert upload(api, "lab.csv", TABLE, **OPTIONS).status_code == 200
    assert file.read_text() == content


def test_a_run_refuses_damaged_or_lost_options(api: TestClient, settings: Settings) -> None:
    """Read without them, the numbers would be others: 1.234 for 1234."""
    made = upload(api, "lab.csv", TABLE, **OPTIONS).json()
    data = {"source": "upload", "dataset": made["id"], "n": 8, "dim": 3}
    with Database(settings.url).snapshot() as session:
        given = input_files(session, settings, {"data": data})
    assert [*given] == [made["id"], f"{made['id']}/reading.json"]
    located = {name: Input.model_validate(one) for name, one in given.items()}
    inputs.locate(located)
    try:
        assert uploaded(UploadData.model_validate(data)).x[0, 0] == 1.25
        file = settings.datasets(made["id"]) / "reading.json"
        file.write_bytes(b"{}")
        inputs.digest.cache_clear()
        with pytest.raises(RunError, match=r"reading\.json: it differs from the stored file"):
            uploaded(UploadData.model_validate(data))
        file.unlink()
        inputs.digest.cache_clear()
        with pytest.raises(RunError, match=r"reading\.json: its file cannot be read"):
            uploaded(UploadData.model_validate(data))
    finally:
        inputs.locate(None)


def test_columns_that_were_left_out_are_named(api: TestClient) -> None:
    made = upload(api, "lab.csv", TABLE, **OPTIONS).json()
    spec = {
        "model": {"family": "ppca", "latent_dim": 1},
        "data": {"source": "upload", "dataset": made["id"], "columns": ["400", "batch"]},
        "evaluate": {"masks": {"schedule": "all", "per_size": 1}},
    }
    spec["data"]["columns"] = ["400", "410", "400"]
    refused = problems(api.post("/v1/experiments:validate", json={"spec": spec}))
    assert "400 is repeated" in refused["/spec/data/columns"]
    spec["data"]["columns"] = ["400", "batch"]
    refused = problems(api.post("/v1/experiments:validate", json={"spec": spec}))
    assert "which has 400, 410, 420; batch was left out" in refused["/spec/data/columns"]


@pytest.mark.parametrize(
    ("name", "options", "pointer", "detail"),
    [
        ("a.csv", {"sep": ":"}, "/query/sep", "one of ',', ';', 'tab' or '|'"),
        ("a.csv", {"thousands": "."}, "/query/thousands", "not the same as decimal, '.'"),
        ("a.csv", {"header": "maybe"}, "/query/header", "true or false"),
        ("a.npy", {"index": "id"}, "/query", "a .npy file has no columns: index, "),
        ("a.txt", {"header": "no"}, "/query", "a .txt file has no columns: "),
        ("a.parquet", {"sep": ";"}, "/query", "a .parquet file has its own types: header, sep"),
        ("a.csv", {"index": ["id", "x" * 201]}, "/query/index", "text should have at most 200"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    api: TestClient, name: str, options: dict[str, Any], pointer: str, detail: str
) -> None:
    found = problems(upload(api, name, "a,b\n1.5,2\n", **options))
    assert len(found) == 1
    ((where, what),) = found.items()
    assert where.startswith(pointer)
    assert what.startswith(detail)


def test_a_body_without_its_line_breaks_is_refused(api: TestClient) -> None:
    """`curl -d @FILE` removes them: three rows became one of nine columns."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    for name, content in (("a.csv", "1.5,2,34,5,6"), ("a.txt", "CCOCCN"), ("a.jsonl", "{}{}")):
        answer = api.post("/v1/datasets", params={"name": name}, content=content, headers=headers)
        assert "curl --data-binary @FILE" in problems(answer)[""]
    content = "a,b\n1.5,2\n0.5,4"
    answer = api.post("/v1/datasets?name=a.csv", content=content, headers=headers)
    assert answer.status_code == 201


def test_endings_in_capital_letters(api: TestClient) -> None:
    made = upload(api, "DATA.CSV", "a,b\n1.5,2\n0.5,4\n").json()
    assert (made["name"], made["format"], made["n"]) == ("DATA.CSV", "csv", 2)


def test_compressed_bodies_are_refused(api: TestClient) -> None:
    content = gzip.compress(b"a,b\n1,2\n")
    headers = {"Content-Encoding": "gzip"}
    answer = api.post("/v1/datasets?name=a.csv", content=content, headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (415, "compressed_body")
    assert "compressed (gzip)" in problems(upload(api, "a.csv", content))[""]


def test_other_files_are_summarised_too(api: TestClient) -> None:
    x = np.random.default_rng(0).normal(size=(6, 3))
    x[2, 1] = np.nan
    assert upload(api, "a.npy", npy(x)).json()["summary"] == "6 rows × 3 columns; 1 missing cell"
    assert upload(api, "a.txt", "one\ntwo\n").json()["summary"] == "2 texts"
    answer = upload(api, "a.npy", npy(np.vstack([x, x[:2]])))
    assert answer.json()["warnings"] == ["2 rows are exact copies of earlier ones, first row 6"]

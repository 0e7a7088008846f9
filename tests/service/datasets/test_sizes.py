"""A spec of an upload may leave out `n` and `dim`: the service fills them in."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from service.accounts.users import ensure_key
from service.app import create_app
from service.datasets.sizes import MAX_LISTED, MAX_NAMED
from service.db.engine import Database
from service.experiments.models import Experiment
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec
from tests.support.uploads import GOOD, npy, post

pytestmark = pytest.mark.usefixtures("inspected_here")

CSV = "a,b,c\n" + "".join(f"{i},{i * i},{-i}\n" for i in range(7))


def spec_of(dataset: str, **more: Any) -> dict[str, Any]:
    model = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
    return ppca_spec(model=model, data={"source": "upload", "dataset": dataset, **more})


@pytest.fixture
def dataset(api: TestClient) -> str:
    return str(post(api, "good.npy", npy(GOOD)).json()["id"])


def sizes(answer: Any) -> tuple[int, int]:
    assert answer.is_success, answer.json()
    data = answer.json()["spec"]["data"]
    return data["n"], data["dim"]


def test_omitted_sizes_are_filled_in(api: TestClient, dataset: str) -> None:
    for given in ({}, {"n": 10}, {"dim": 4}, {"n": 10, "dim": 4}):
        body = {"spec": spec_of(dataset, **given)}
        for path in ("/v1/experiments:validate", "/v1/experiments"):
            assert sizes(api.post(path, json=body)) == (10, 4)
        made = api.post("/v1/experiments:batch", json={"experiments": [body]}).json()["items"]
        assert sizes(api.get(made[0]["url"])) == (10, 4)


def test_sizes_of_the_selected_columns_or_array(api: TestClient) -> None:
    table = post(api, "a.csv", CSV.encode()).json()["id"]
    check = "/v1/experiments:validate"
    assert sizes(api.post(check, json={"spec": spec_of(table)})) == (7, 3)
    columns = spec_of(table, columns=["c", "a"])
    columns["model"]["latent_dim"] = 1
    assert sizes(api.post(check, json={"spec": columns})) == (7, 2)
    file = io.BytesIO()
    np.savez(file, a=GOOD[:, :3], b=GOOD[:8])
    arrays = post(api, "two.npz", file.getvalue()).json()["id"]
    assert sizes(api.post(check, json={"spec": spec_of(arrays, array="b")})) == (8, 4)


def test_an_array_of_several_is_never_chosen_silently(api: TestClient) -> None:
    file = io.BytesIO()
    np.savez(file, a=GOOD[:, :3], b=GOOD[:8])
    arrays = post(api, "two.npz", file.getvalue()).json()["id"]
    for given in ({}, {"n": 10, "dim": 3}):
        body = {"spec": spec_of(arrays, **given)}
        (told,) = api.post("/v1/experiments", json=body).json()["errors"]
        assert told["pointer"] == "/spec/data/array"
        assert "a (10 × 3), b (8 × 4)" in told["detail"]


def test_an_upload_is_named_by_its_file_name(api: TestClient, dataset: str) -> None:
    for path in ("/v1/experiments:validate", "/v1/experiments"):
        answer = api.post(path, json={"spec": spec_of("good.npy")})
        assert sizes(answer) == (10, 4)
        assert answer.json()["spec"]["data"]["dataset"] == dataset
    sweep = {"spec": spec_of("good.npy"), "grid": {"seeds": [[1], [2]]}}
    assert api.post("/v1/sweeps", json=sweep).status_code == 202
    text = post(api, "a.txt", b"the cat\nthe dog\n").json()["id"]
    model = {"family": "masked_lm", "checkpoint": "any"}
    spec = {"model": model, "data": {"source": "text", "dataset": "a.txt"}}
    answer = api.post("/v1/experiments:validate", json={"spec": spec})
    assert answer.json()["spec"]["data"]["dataset"] == text
    other = post(api, "good.npy", npy(GOOD + 1)).json()["id"]
    for name, words in (
        ("good.npy", f"newest first: {other}, {dataset}"),
        ("x.npy", "no data set of this name"),
    ):
        (told,) = api.post("/v1/experiments", json={"spec": spec_of(name)}).json()["errors"]
        assert told["pointer"] == "/spec/data/dataset"
        assert words in told["detail"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 11}, "/data/n", "the upload's n is 10, not 11"),
    ({"n": None}, "/data/n", "integer"),
    ({"dim": 5}, "/data/dim", "the upload's dim is 4, not 5"),
    ({"dataset": "0" * 32}, "/data/dataset", "you have no data set of this id"),
    ({"dataset": 7}, "/data/dataset", "the id or name of an upload, in quotes, not 7"),
    ({"array": "b"}, "/data/array", "b: not in the upload, which has none"),
    ({"array": ["b"]}, "/data/array", "text"),
    ({"columns": ["x", "y"]}, "/data/columns", "x, y: not in the upload, which has none"),
    ({"columns": 5}, "/data/columns", "list"),
    ({"sead": 1}, "/data/sead", "unknown field"),
]


def test_wrong_sizes_are_refused_by_field(api: TestClient, dataset: str) -> None:
    for changes, pointer, words in WRONG:
        spec = spec_of(**{"dataset": dataset, **changes})
        (told,) = api.post("/v1/experiments", json={"spec": spec}).json()["errors"]
        assert told["pointer"] == f"/spec{pointer}"
        assert words in told["detail"]
        both = {"experiments": [{"spec": spec_of(dataset)}, {"spec": spec}]}
        (told,) = api.post("/v1/experiments:batch", json=both).json()["errors"]
        assert told["pointer"] == f"/experiments/1/spec{pointer}"


def test_sizes_of_uploads_of_others_are_not_revealed(
    api: TestClient, dataset: str, database: Database, settings: Settings
) -> None:
    """Neither by the sizes themselves nor by contradictions to them, nor are ids by a name."""
    second = post(api, "good.npy", npy(GOOD + 1)).json()["id"]
    with database.transaction() as session:
        ensure_key(session, "other", settings.store / "other")
    key = (settings.store / "other").read_text().strip()
    with TestClient(create_app(settings), headers={"Authorization": f"Bearer {key}"}) as other:
        spec = spec_of(dataset)
        spec["model"]["latent_dim"] = 9
        for body in ({"spec": spec}, {"spec": spec, "grid": {"seeds": [[1]]}}):
            path = "/v1/sweeps" if "grid" in body else "/v1/experiments"
            told = other.post(path, json=body).json()["errors"]
            assert [one["pointer"] for one in told] == ["/spec/data/dataset"]
        answer = other.post("/v1/experiments", json={"spec": spec_of("good.npy")})
        assert answer.json()["errors"][0]["pointer"] == "/spec/data/dataset"
        assert dataset not in answer.text
        assert second not in answer.text


def test_the_cache_knows_both_spellings(api: TestClient, dataset: str, database: Database) -> None:
    keys = [
        api.post("/v1/experiments", json={"spec": spec_of(dataset, **given)}).json()["id"]
        for given in ({}, {"n": 10, "dim": 4})
    ]
    with database.snapshot() as session:
        first, second = (session.get_one(Experiment, one).cache_key for one in keys)
    assert first is not None
    assert first == second


def test_a_repeated_request_is_answered_after_its_upload_is_deleted(
    api: TestClient, dataset: str
) -> None:
    """References are checked only for a new key."""
    body = {"spec": spec_of(dataset)}
    sweep = {**body, "grid": {"seeds": [[1], [2]]}}
    points = api.post("/v1/sweeps", json=sweep).json()["urls"]["points"]
    requests: dict[str, dict[str, Any]] = {
        "/v1/experiments": body,
        "/v1/experiments:batch": {"experiments": [body]},
        "/v1/sweeps": sweep,
        points: {"list": [{"seeds": [3]}]},
    }

    def send_all() -> list[Any]:
        answers = [api.post(path, json=sent, headers={"Idempotency-Key": path})
                   for path, sent in requests.items()]  # fmt: skip
        return [(one.status_code, one.json().get("id") or one.json()) for one in answers]

    first = send_all()
    assert {status for status, _ in first} == {202}
    api.delete(f"/v1/datasets/{dataset}")
    assert send_all() == first
    assert api.post("/v1/experiments", json=body).status_code == 422


def test_each_point_of_a_sweep_has_the_sizes_of_its_upload(api: TestClient, dataset: str) -> None:
    other = post(api, "more.npy", npy(np.vstack([GOOD, GOOD]))).json()["id"]
    body = {"spec": spec_of(dataset), "grid": {"data.dataset": [dataset, other], "seeds": [[1]]}}
    made = api.post("/v1/sweeps", json=body).json()
    more = {"list": [{"seeds": [2]}]}
    assert api.post(made["urls"]["points"], json=more).status_code == 202
    rows = api.get(made["urls"]["table"]).json()["items"]
    found = [sizes(api.get(f"/v1/experiments/{row['experiment_id']}")) for row in rows]
    assert found == [(10, 4), (20, 4), (10, 4)]


def test_a_sweep_over_a_wrong_size_is_refused(api: TestClient, dataset: str) -> None:
    body = {"spec": spec_of(dataset), "grid": {"data.n": [10, 11]}}
    (told,) = api.post("/v1/sweeps", json=body).json()["errors"]
    assert told["pointer"] == "/grid/data.n/1"
    assert "the upload's n is 10, not 11" in told["detail"]


def told(api: TestClient, **data: Any) -> str | None:
    """Return the problem reported for factor analysis fitted to an upload."""
    model = {"family": "factor_analysis", "latent_dim": 1, "init": "maximum_likelihood"}
    spec = ppca_spec(model=model, data={"source": "upload", **data})
    answer = api.post("/v1/experiments:validate", json={"spec": spec})
    if answer.status_code == 200:
        return None
    (problem,) = answer.json()["errors"]
    assert problem["pointer"] == "/spec/data/dataset"
    return str(problem["detail"]).partition(", so factor")[0]


def test_a_constant_column_is_refused_by_name_where_its_noise_is_estimated(
    api: TestClient,
) -> None:
    table = post(api, "a.csv", b"a,b,c\n1,2,7\n2,1,7\n5,3,7\n").json()["id"]
    assert told(api, dataset=table) == "column c is constant"
    assert told(api, dataset=table, columns=["c", "b"]) == "column c is constant"
    assert told(api, dataset=table, columns=["a", "b"]) is None
    assert told(api, dataset=table, binarize="stochastic") is None  # the drawn points differ
    assert api.post("/v1/experiments:validate", json={"spec": spec_of(table)}).is_success
    file = io.BytesIO()
    np.savez(file, a=GOOD, b=GOOD * [0, 1, 0, 1])
    arrays = post(api, "two.npz", file.getvalue()).json()["id"]
    assert told(api, dataset=arrays, array="a") is None
    assert told(api, dataset=arrays, array="b") == "columns 0, 2 are constant (counted from 0)"


def test_missing_values_are_shown_and_refused_by_name_where_they_are_not_used(
    api: TestClient,
) -> None:
    made = post(api, "a.csv", b"a,b,c\n1,,7\n2,1,3\n,3,7\n4,,1\n").json()
    assert made["missing"] == {"": {"a": 1, "b": 2}}
    assert api.get(f"/v1/datasets/{made['id']}").json()["missing"] == made["missing"]
    data = {"source": "upload", "dataset": made["id"]}

    def refusal(**changes: Any) -> str | None:
        spec = {**ppca_spec(data=data, model={**FITTED, "latent_dim": 1}), **changes}
        answer = api.post("/v1/experiments:validate", json={"spec": spec})
        if answer.status_code == 200:
            return None
        (problem,) = answer.json()["errors"]
        assert problem["pointer"] == "/spec/data/dataset"
        return str(problem["detail"])

    assert refusal() is None
    assert refusal(model={**FITTED, "family": "factor_analysis", "latent_dim": 1}) is None
    train = {"epochs": 2}
    assert str(refusal(train=train)).startswith("columns a, b are incomplete")
    some = str(refusal(train=train, data={**data, "columns": ["c", "b"]}))
    assert some.startswith("column b is incomplete")
    vae = {
        "family": "linear_vae", "latent_dim": 1,
        "conditionals": {"method": "gauss_hermite", "nodes": 20},
        "likelihood": {"distribution": "gaussian", "noise_precision": 1.0},
    }  # fmt: skip
    assert "use ppca or factor_analysis" in str(refusal(model=vae))


FITTED = {"family": "ppca", "init": "maximum_likelihood"}


def test_a_problem_names_the_first_columns_of_very_many(api: TestClient) -> None:
    head = ",".join(f"c{i}" for i in range(MAX_LISTED + 1))
    rows = "".join(",".join([str(i)] * (MAX_LISTED + 1)) + "\n" for i in range(3))
    table = post(api, "a.csv", f"{head}\n{rows}".encode()).json()["id"]
    wrong = {"spec": spec_of(table, columns=["x", "y"])}
    (told,) = api.post("/v1/experiments", json=wrong).json()["errors"]
    assert told["detail"].startswith("x, y: not in the upload, which has c0, c1, c2,")
    assert told["detail"].endswith(f"c{MAX_LISTED - 1}, …")


def test_submissions_stay_in_order_whatever_their_uploads(api: TestClient, dataset: str) -> None:
    other = post(api, "b.npy", npy(GOOD + 1)).json()["id"]
    wanted = [dataset, other, dataset, other, other, dataset]
    batch = [{"spec": spec_of(one, seed=i)} for i, one in enumerate(wanted)]
    made = api.post("/v1/experiments:batch", json={"experiments": batch}).json()["items"]
    assert [api.get(one["url"]).json()["spec"]["data"]["dataset"] for one in made] == wanted


def test_own_uploads_go_before_newer_ones_of_others(
    api: TestClient, database: Database, tmp_path: Path, dataset: str
) -> None:
    own = api.headers["Authorization"]
    with database.transaction() as session:
        ensure_key(session, "other", tmp_path / "key")
    api.headers["Authorization"] = f"Bearer {(tmp_path / 'key').read_text().strip()}"
    for i in range(MAX_NAMED):
        query = {"name": "good.npy", "visibility": "lab"}
        assert api.post("/v1/datasets", params=query, content=npy(GOOD + i + 1)).is_success
    api.headers["Authorization"] = own
    answer = api.post("/v1/experiments:validate", json={"spec": spec_of("good.npy")})
    assert answer.json()["spec"]["data"]["dataset"] == dataset

"""Each kind of family through the whole service: uploaded, trained, scored, over HTTP."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mptlab import Client, Refused
from service.settings import Settings
from tests.support import tiny_lm
from tests.support.processes import embedded_service

pytestmark = pytest.mark.slow
"""An embedded service and its runs. Missing values and training have quick tests in mptcore."""

TINY = {"family": "masked_lm", "checkpoint": "tiny"}
COMPUTE = {"threads": 1}


@pytest.fixture(scope="module")
def client(prepared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Client of an embedded service with one checkpoint."""
    folder = tmp_path_factory.mktemp("language")
    tiny_lm.checkpoint(folder / "models" / "tiny")
    store = shutil.copytree(prepared_store, folder / "store")
    settings = Settings(store=store, database_url=None)
    models = {"MPT_MODELS_DIR": str(folder / "models")}
    with embedded_service(settings, folder / "log", **models) as lab, lab.client() as client:
        yield client


def upload(client: Client, path: Path, content: str) -> dict[str, Any]:
    path.write_text(content)
    made: dict[str, Any] = client.upload(path)
    return made


def test_trained_on_an_upload_and_scored(client: Client, tmp_path: Path) -> None:
    rows = "\n".join(json.dumps({"text": line, "stars": 3}) for line in tiny_lm.lines(40))
    made = upload(client, tmp_path / "reviews.jsonl", rows)
    assert (made["n"], made["dim"], made["columns"]) == (40, None, ["text"])
    data = {"source": "text", "dataset": made["id"], "heldout": 0.2}
    train = {"steps": 10, "batch_size": 8, "masks": {"schedule": "uniform"}, "curve_at": [5]}
    spec = {"model": {**TINY, "init": "random"}, "data": data, "train": train, "compute": COMPUTE}
    trained = client.wait(client.submit(spec)["id"], timeout_s=120)
    assert trained["status"] == "succeeded", trained["failure"]

    model = {**TINY, "init": "experiment", "experiment": trained["id"]}
    data = {"source": "text", "dataset": made["id"]}
    spec = {"model": model, "baseline": TINY, "data": data, "compute": COMPUTE}
    scored = client.wait(client.submit(spec)["id"], timeout_s=120)
    assert scored["status"] == "succeeded", scored["failure"]
    curves = client.curves(scored["id"], "score_by_rate")
    assert [curve["labels"]["model"] for curve in curves] == ["model", "baseline"]
    for curve in curves:
        assert len(curve["x"]) == 99
        assert all(value is not None for value in curve["value"])
        known = [error for error in curve["std_err"] if error is not None]
        assert all(error > 0 for error in known)
        assert known == curve["std_err"][: len(known)]  # at the highest rates masks hide all tokens
        assert len(known) >= 90
    area = {m["labels"].get("model"): m for m in scored["metrics"] if m["name"] == "area"}
    assert area["model"]["std_err"] > 0


def test_a_table_with_missing_values_is_fitted_and_scored(client: Client, tmp_path: Path) -> None:
    """A family that needs all values refuses it and names its columns."""
    rows = [f"{i % 7},{(i * i) % 11},{i % 5 + i % 7 if i % 3 else ''}" for i in range(1, 40)]
    made = upload(client, tmp_path / "gaps.csv", "\n".join(["a,b,c", *rows]))
    assert made["missing"] == {"": {"c": 13}}
    model = {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"}
    data = {"source": "upload", "dataset": made["id"]}
    evaluate = {"masks": {"schedule": "all", "design": "exhaustive"}}
    spec = {"model": model, "data": data, "evaluate": evaluate, "compute": COMPUTE}
    with pytest.raises(Refused, match="column c is incomplete"):
        client.submit({**spec, "train": {"epochs": 2}})
    scored = client.wait(client.submit(spec)["id"], timeout_s=120)
    assert scored["status"] == "succeeded", scored["failure"]
    found = {one["name"]: one["value"] for one in scored["metrics"]}
    assert found["mpt"] == pytest.approx(found["lml"], rel=1e-9)


def test_a_missing_checkpoint_is_refused_with_the_available_names(client: Client) -> None:
    data = {"source": "text", "lines": tiny_lm.lines(3)}
    model = {**TINY, "checkpoint": "nobody/nothing"}
    with pytest.raises(Refused, match="there is no checkpoint nobody/nothing; there are tiny"):
        client.submit({"model": model, "data": data, "compute": COMPUTE})


def test_a_vae_leaves_curves_weights_and_pictures(client: Client) -> None:
    """One POST trains with both objectives from the same start."""
    spec = {
        "model": {"family": "linear_vae", "latent_dim": 1,
                  "likelihood": {"distribution": "bernoulli"}},
        "data": {"source": "digits", "binarize": "threshold"},
        "train": {"objective": ["mpt", "elbo"], "epochs": 3},
        "evaluate": {"masks": {"schedule": "fixed", "rate": 0.15, "per_size": 2}},
        "compute": COMPUTE,
    }  # fmt: skip
    ended = client.wait(client.submit(spec)["id"], timeout_s=120)
    assert ended["status"] == "succeeded", ended["failure"]
    curves = client.curves(ended["id"], "lml")
    assert [curve["labels"]["objective"] for curve in curves] == ["mpt", "elbo"]
    assert all(len(curve["x"]) == 4 for curve in curves)
    artifacts = client.artifacts(ended["id"])
    pictures = {a["name"] for a in artifacts if a["media_type"] == "image/png"}
    kinds = ("reconstructions", "samples")
    assert pictures == {f"{kind}-{o}.png" for kind in kinds for o in ("mpt", "elbo")}
    for name in pictures:
        assert client.artifact(ended["id"], name).startswith(b"\x89PNG")


def test_the_paper_s_presets_by_the_client(client: Client) -> None:
    preset = client.preset("table2-cola")
    assert [spec["model"]["init"] for spec in preset["specs"]] == ["pretrained", "random"]
    with pytest.raises(Refused, match="not one of your experiments and not shared"):
        client.verdict("table2-cola", ["0" * 32, "1" * 32])

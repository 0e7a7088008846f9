"""Wrong inputs that newcomers type, and the sentences that help them."""

import json
import os
from pathlib import Path
from typing import Any, Literal

import pytest
from fastapi.testclient import TestClient

from mptcore.specs import validate_spec
from mptlab import Client, serve
from service.app import create_app
from service.experiments.inputs import Inputs
from service.settings import Settings
from tests.support.commands import mpt_here
from tests.support.lm_specs import BASE
from tests.support.ppca_spec import ppca_spec
from tests.support.vae_specs import changed

FIXED = {"schedule": "fixed", "rate": 15}
UPLOAD = {"source": "upload", "dataset": "clean.csv"}
FACTORS = {"family": "factor_analysis", "latent_dim": 2, "init": "maximum_likelihood"}
HELD = {**FACTORS, "family": "ppca"}
TEXT = {"source": "text", "lines": ["one cat", "two dogs"], "n": 100_000}
BERT = {"family": "masked_lm", "checkpoint": "/home/me/bert"}

SPECS: list[tuple[dict[str, Any], str]] = [
    ({"model__family": "PPCA"}, "/spec/model/family: one of 'ppca', 'factor_analysis', "
     "'linear_vae', 'vae', 'masked_lm'; did you mean ppca?"),
    ({"model__family": "fa"}, "did you mean factor_analysis?"),
    ({"compute__device": "gpu"}, "/spec/compute/device: one of 'auto', 'cpu' or 'cuda'; did you "
     "mean cuda?"),
    ({"data__heldout": 20}, "/spec/data/heldout: less than 1: a fraction, 0.2 for 20 %"),
    ({"evaluate__masks": FIXED}, "less than or equal to 1: a fraction, 0.15 for 15 %"),
    ({"data__source": "csv"}, "upload the file (mpt upload FILE), then use the source upload"),
    ({"data": UPLOAD}, "/spec/data/dataset: you have no data set of this name: `mpt datasets` "
     "lists them, `mpt upload FILE` adds one"),
    ({"data": {"source": "digits"}, "model": FACTORS}, "/spec/data/source: columns 0, 32, 39 are "
     "constant (counted from 0), so factor analysis has no maximum"),
    ({"data": TEXT, "model": BERT, "evaluate": {}}, "a folder of this machine is read from "
     "MPT_MODELS_DIR: move or link it there, and give its name"),
    ({"data": TEXT, "model": {**BERT, "checkpoint": "bert"}, "evaluate": {}}, "/spec/data/n: the "
     "text has 2 lines: give at most 2, or null for all"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "told"), SPECS)
def test_a_wrong_spec(environment: dict[str, str], changes: dict[str, Any], told: str) -> None:
    text = json.dumps(ppca_spec(**changes))
    code, _, error = mpt_here(environment, "submit", "-", text=text)
    assert code == 1
    assert told in error


@pytest.fixture(scope="module")
def digits(environment: dict[str, str]) -> str:
    """A finished run with the name digits."""
    words = ("submit", "-", "--name", "digits", "--watch")
    code, shown, error = mpt_here(environment, *words, text=json.dumps(ppca_spec(seeds=[34])))
    assert code == 0, error
    return shown.split()[0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["list", "--where", "status == 'failed'"], "not '=': write one ="),
        (["list", "--where", "name = my run and tag = x"], "not 'run': quote it: \"my run\""),
        (["list", "--where", "lml > -60"], "there is no field lml: did you mean metrics.lml?"),
        (["list", "--order-by", "lml"], "there is no order by lml: did you mean metrics.lml?"),
        (["list", "--order-by", "nam"], "did you mean name? there are created, finished, name"),
        (["show", "digit"], "you have no experiment digit: did you mean digits?"),
        (["presets", "run", "tabel1"], "there is no preset tabel1: did you mean table1?"),
        (["reproduce", "fig9"], "there is no preset fig9"),
        (["table", "digits"], "it is an experiment, mpt show digits shows it"),
        (["extend", "digits", "--over", "data.n=5"], "it is an experiment, mpt show digits"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("digits")
def test_a_wrong_word(environment: dict[str, str], words: list[str], told: str) -> None:
    code, _, error = mpt_here(environment, *words)
    assert code == 1
    assert told in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["score", "texts.txt", "--model", "bert"], "there is no file texts.txt"),
        (["submit", "--data", "a.csv", "--index", "id", "--latent-dim", "2"], "there is no file"),
        (["score", "a text", "--model", "./my-bert"], "there is no folder my-bert"),
        (["plot", "x.pdf"], "give an experiment or a sweep: mpt plot mine x.pdf"),
    ],
)
def test_a_file_that_is_not_there(environment: dict[str, str], words: list[str], told: str) -> None:
    code, _, error = mpt_here({**environment, "COLUMNS": "200"}, *words)
    assert code in (1, 2)
    assert told in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["submit", "mine.csv"],
         "mine.csv is data, not a spec: mpt submit --data mine.csv --latent-dim"),
        (["submit", "mine.xlsx"], "mine.xlsx is data, not a spec: save it as .csv"),
        (["submit", "--data", "a.csv", "--model", "pca"], "did you mean --model ppca?"),
        (["submit", "--data", "a.csv", "--model", "PPCA,factor-analysis"],
         "did you mean --model ppca,factor_analysis?"),
        (["sweep", "-", "--over", "data.n=1", "--over", "data.n=2"], "--over has a field twice"),
        (["validate", "mine.parquet"], "mpt submit --data mine.parquet --latent-dim 2..10"),
        (["sweep", "a.npz", "--over", "data.n=1,2"], "mpt submit --data a.npz --latent-dim"),
        (["submit", "mine.jsonl"], "mpt submit --text mine.jsonl --checkpoint NAME scores all"),
        (["submit", "--text", "t.csv", "--checkpoint", "bert"],
         "t.csv is a table: mpt score t.csv --column COLUMN --checkpoint bert scores each text"),
        (["submit", "--data", "t.csv", "--checkpoint", "bert"],
         "checkpoints score texts, with --text FILE or mpt score"),
        (["submit", "--data", "a.csv", "--text", "a.txt"], "give one of them"),
    ],
)  # fmt: skip
def test_data_in_place_of_a_spec(
    environment: dict[str, str], words: list[str], told: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    code, _, error = mpt_here({**environment, "COLUMNS": "300"}, *words)
    assert code == 2
    assert told in error


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("NaN", "a finite number, not NaN"),
        ("-Infinity", "a finite number, not -Infinity"),
        ("0,2", "not '0,2': write 0.2"),
        ("20%", "not '20%': write 0.2"),
        ("abc", "a number, not 'abc'"),
        ('"0.2"', "a number, without quotes"),
    ],
)
def test_a_wrong_value_of_set(environment: dict[str, str], value: str, advice: str) -> None:
    words = ("submit", "-", "--set", f"data.heldout={value}")
    code, shown, error = mpt_here(environment, *words, text=json.dumps(ppca_spec()))
    assert (code, shown, error.count("\n")) == (1, "", 1)
    assert error.startswith("mpt: --set data.heldout: ")
    assert advice in error


def test_a_range_of_latent_dimensions_that_does_not_fit(
    environment: dict[str, str], tmp_path: Path
) -> None:
    lines = ["abcdefghij", *("".join(str(i * j % 7) for j in range(1, 11)) for i in range(12))]
    file = tmp_path / "ten.csv"
    file.write_text("".join(f"{','.join(line)}\n" for line in lines))
    words = ("submit", "--data", str(file), "--latent-dim", "1..20")
    code, _, error = mpt_here(environment, *words)
    told = "--latent-dim: at most 9, fewer than the data's 10 dimensions, not 10 to 20"
    assert code == 1
    assert error.splitlines()[-1] == f"mpt: {told}"


def test_a_range_with_a_hyphen(environment: dict[str, str]) -> None:
    words = ("sweep", "-", "--over", "model.latent_dim=2-5")
    code, _, error = mpt_here({**environment, "COLUMNS": "200"}, *words, text="{}")
    assert code == 2
    assert "2-5 is not a range: write 2..5" in error


def test_a_field_without_the_part_that_has_it(environment: dict[str, str]) -> None:
    text = json.dumps(ppca_spec(data={"source": "digits"}, model=HELD))
    told = "unknown field; allowed here: baseline, compute, data, evaluate, model, seeds, train; "
    told += "did you mean model.latent_dim?"
    over = mpt_here(environment, "sweep", "-", "--over", "latent_dim=2..5", text=text)
    assert over == (1, "", f"mpt: --over latent_dim: {told}\n")
    set_ = mpt_here(environment, "submit", "-", "--set", "latent_dim=3", text=text)
    assert set_ == (1, "", f"mpt: --set latent_dim: {told}\n")


def test_a_run_that_no_worker_can_run(environment: dict[str, str], client: Client) -> None:
    text = json.dumps(ppca_spec(compute__device="cuda"))
    code, shown, error = mpt_here(environment, "submit", "-", text=text)
    client.cancel(shown.strip())
    assert (code, "no GPU worker is registered" in error) == (0, True)


@pytest.mark.parametrize(
    ("embedded", "device", "status"),
    [("cpu", "cuda", 422), ("cpu", "auto", 202), ("gpu", "cuda", 202), (None, "cuda", 202)],
)
def test_a_run_on_a_gpu_where_there_is_none(
    settings: Settings, embedded: Literal["cpu", "gpu"] | None, device: str, status: int
) -> None:
    """`mpt serve` refuses it at once; a lab may start a GPU worker later."""
    headers = {"Authorization": f"Bearer {settings.key_file.read_text().strip()}"}
    app = create_app(settings.model_copy(update={"embedded": embedded}))
    with TestClient(app, headers=headers) as api:
        body = {"spec": ppca_spec(compute__device=device), "cache": False}
        answer = api.post("/v1/experiments", json=body)
    assert answer.status_code == status
    if status == 422:
        (error,) = answer.json()["errors"]
        assert error["pointer"] == "/spec/compute/device"
        assert "no GPU: use auto or cpu" in error["detail"]


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = tmp_path / "file" / "store"
    code, _, error = mpt_here({**os.environ, "MPT_STORE": str(store)}, "serve")
    told = f"cannot write {store} (Not a directory): set MPT_STORE to a folder of yours"
    assert (code, error) == (1, f"mpt: {told}\n")


def test_the_address_of_the_service(environment: dict[str, str]) -> None:
    url = environment["MPT_URL"]
    assert mpt_here({**environment, "MPT_URL": f"{url}/v1"}, "datasets")[0] == 0
    found = {name: value for name, value in environment.items() if name != "MPT_URL"}
    assert mpt_here(found, "datasets")[0] == 0  # on whatever port it is
    other = f"http://127.0.0.1:{serve.free_port()}"
    code, _, error = mpt_here({**environment, "MPT_URL": other}, "datasets")
    assert code == 4
    assert error.startswith(f"mpt: {other} does not answer (")
    assert error.endswith(f"): this store is served at {url}; leave out MPT_URL and --url\n")


def test_a_key_that_the_service_refuses(environment: dict[str, str]) -> None:
    url = environment["MPT_URL"]
    code, _, error = mpt_here({**environment, "MPT_API_KEY": "mpt_x_y"}, "datasets")
    assert code == 1
    assert error.startswith(f"mpt: {url} refuses the key from MPT_API_KEY: ")
    assert error.endswith(f"; `mpt login --url {url}` stores another key\n")


def test_a_checkpoint_in_the_store_is_there(settings: Settings, tmp_path: Path) -> None:
    """Also if the lab's folder of checkpoints lacks it."""
    made = settings.model_copy(update={"models_dir": tmp_path})
    spec = validate_spec(changed(BASE, "model/checkpoint", "mine-1"))
    assert Inputs(made).files(spec) is None
    (settings.store / "models" / "mine-1").mkdir(parents=True)
    (settings.store / "models" / "mine-1" / "config.json").write_text("{}")
    assert [path.name for path in Inputs(made).files(spec) or ()] == ["config.json"]


def test_rates_are_sorted() -> None:
    rates = {"schedule": "rates", "rates": [0.5, 0.2]}
    spec: Any = validate_spec(changed(BASE, "evaluate/masks", rates))
    assert spec.evaluate.masks.rates == (0.2, 0.5)

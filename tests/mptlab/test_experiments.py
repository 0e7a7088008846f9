"""Experiments, sweeps and curves as a user reads them: by a real service."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mptcore.specs import parse_spec
from mptlab import Client, Experiment, NotSucceeded, Refused
from tests.support.ppca_spec import ppca_spec

WAITING = ppca_spec(compute__device="cuda")


@pytest.fixture(scope="module")
def connected(environment: dict[str, str]) -> Iterator[Client]:
    key = Path(environment["MPT_STORE"], "api-key").read_text().strip()
    with Client(environment["MPT_URL"], key) as client:
        yield client


@pytest.fixture(scope="module")
def run(connected: Client) -> Experiment:
    masks = {"schedule": "all", "per_size": 40}
    spec = ppca_spec(seeds=[4, 44], evaluate__convergence=True, evaluate__masks=masks)
    return connected.experiments.create(spec, name="<b>run", wait=True)


def test_a_run_and_its_metrics(run: Experiment) -> None:
    assert (run.status, run.spec["seeds"]) == ("succeeded", [4, 44])
    of_seeds = [m for m in run["metrics"] if m["name"] == "mpt"]
    assert run.metrics["mpt"] == pytest.approx(sum(m["value"] for m in of_seeds) / 2)
    errors = [m["std_err"] for m in of_seeds]
    assert run.metrics["mpt std_err"] == pytest.approx(np.hypot(*errors) / 2)
    html = run._repr_html_()
    assert "data:image/svg+xml" in html
    assert "&lt;b&gt;run" in html
    assert "<b>" not in html


def test_curves_have_a_column_for_each_label(run: Experiment) -> None:
    frame = run.curves("score").to_pandas()
    assert list(frame.columns) == ["series", "seed", "x", "value", "std_err", "n", "reason"]
    assert len(frame) == 2 * 6
    assert sorted(set(frame["seed"])) == [4, 44]
    (mpt,) = [m for m in run["metrics"] if (m["name"], m["labels"]) == ("mpt", {"seed": 44})]
    assert frame[frame["seed"] == 44]["value"].sum() == pytest.approx(mpt["value"])
    table = run.curves("score", seed=4).to_arrow()
    assert (table.num_rows, table["x"].to_pylist()) == (6, [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("form", ["model", "file", "text path", "numpy"])
def test_a_spec_in_any_form(connected: Client, tmp_path: Path, form: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(WAITING))
    arrays = {**WAITING, "seeds": np.array([4]), "data": {**WAITING["data"], "n": np.int64(50)}}
    model = parse_spec(json.dumps(WAITING).encode())
    given: Any = {"model": model, "file": file, "text path": str(file), "numpy": arrays}[form]
    made = connected.experiments.create(given)
    assert made.spec["seeds"] == [4]
    assert made.spec["compute"]["device"] == "cuda"
    made.cancel()


def test_a_preset_by_its_name(connected: Client) -> None:
    made = connected.experiments.create("fig1-left", cache=False)
    assert made.spec == connected.preset("fig1-left")["specs"][0]
    with pytest.raises(ValueError, match=r"3 specs: call client\.run_preset\('table1'\)"):
        connected.experiments.create("table1")
    with pytest.raises(Refused, match="did you mean table1"):
        connected.experiments.create("tabel1")


def test_a_wait_shows_progress_by_default(
    connected: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    cancelled = connected.experiments.create(WAITING).cancel()
    cancelled.wait(check=False)
    assert capsys.readouterr().err == f"{cancelled.id}  cancelled\n"
    cancelled.wait(progress=False, check=False)
    assert capsys.readouterr().err == ""


def test_an_unsuccessful_run_raises(connected: Client) -> None:
    first = connected.experiments.create(WAITING, name="first")
    second = connected.experiments.create(WAITING, after=[first.id])
    first.cancel()
    with pytest.raises(NotSucceeded, match=rf"^{second.id} failed: invalid: ") as raised:
        connected.experiments.wait(second)
    assert raised.value.document["status"] == "failed"
    assert first.wait(check=False).status == "cancelled"
    sweep = connected.sweep(WAITING, {"seeds": [[1], [2]]})
    sweep.cancel()
    with pytest.raises(NotSucceeded, match="of 2 points, 2 cancelled"):
        sweep.wait()


def test_the_newest_experiments_are_listed(connected: Client, run: Experiment) -> None:
    waiting = [connected.experiments.create(WAITING).cancel() for _ in range(2)]
    listed = connected.experiments.list(2)
    assert [experiment.id for experiment in listed] == [run.id for run in waiting[::-1]]
    (named,) = connected.experiments.list(None, limit=1, name="<b>run")
    assert named.metrics == run.metrics


def test_experiments_are_compared_by_their_different_fields(
    connected: Client, run: Experiment
) -> None:
    other = connected.experiments.create(ppca_spec(seeds=[4], data__n=60), wait=True)
    frame = connected.compare([run, other.id])
    assert list(frame.index) == [run.id, other.id]
    fields = [column for column in frame.columns if "." in column or column == "seeds"]
    assert sorted(fields) == [
        "data.n", "evaluate.convergence", "evaluate.masks.per_size", "seeds"
    ]  # fmt: skip
    assert list(frame["data.n"]) == [50, 60]
    assert frame["lml"][run.id] == pytest.approx(run.metrics["lml"])


def test_a_sweep_over_a_range(connected: Client) -> None:
    spec = ppca_spec(model__init="random")
    sweep = connected.sweep(spec, {"model.latent_dim": range(1, 3), "data.n": np.arange(50, 52)})
    sweep.wait()
    frame = sweep.frame()
    assert list(zip(frame["model.latent_dim"], frame["data.n"], strict=True)) == [
        (1, 50), (1, 51), (2, 50), (2, 51)
    ]  # fmt: skip
    assert connected.get_sweep(sweep.id).table() == sweep.table()
    assert "model.latent_dim" in sweep._repr_html_()
    assert "data:image/svg+xml" in sweep._repr_html_()


def test_files_are_downloaded(connected: Client, tmp_path: Path) -> None:
    spec = ppca_spec(model__init="random", train={"objective": "mpt", "epochs": 1,
                     "masks": {"schedule": "all", "per_size": 1}})  # fmt: skip
    trained = connected.experiments.create(spec, wait=True)
    names = [artifact["name"] for artifact in trained.artifacts()]
    assert names
    assert [file.name for file in trained.download(tmp_path / "new")] == names


def test_a_refusal_names_field_and_reason(connected: Client) -> None:
    with pytest.raises(Refused) as raised:
        connected.experiments.create({**WAITING, "sedes": [1]})
    (error,) = raised.value.errors
    assert error["pointer"] == "/spec/sedes"
    assert (raised.value.reason, raised.value.status) == ("invalid_request", 422)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("lab.csv", 'lab.csv is data, not a spec: .*"dataset": "lab.csv"'),
        (Path("data/lab.NPY"), 'data/lab.NPY is data, not a spec: .*"dataset": "data/lab.NPY"'),
        ("lab.jsonl", 'lab.jsonl is data, not a spec: .*"source": "text".*client.score'),
        ("", "the name of the preset is empty"),
        ("lab.xlsx", "lab.xlsx is data, not a spec: save it as .csv"),
        (np.zeros((3, 2)), 'an array is data, not a spec: .*"dataset": "mine.npy"'),
        (pd.DataFrame({"a": [1]}), "an array is data, not a spec: "),
    ],
)
def test_data_are_no_spec(connected: Client, given: Any, told: str) -> None:
    for use in (connected.experiments.create, connected.validate, connected.sweep):
        with pytest.raises(ValueError, match=told):
            use(given)


@pytest.mark.parametrize("values", [5, "1..5"])
def test_a_grid_has_lists_of_values(connected: Client, values: Any) -> None:
    told = rf"^model.latent_dim: give a list of values, .*, not {values!r}$"
    with pytest.raises(ValueError, match=told):
        connected.sweep(WAITING, {"model.latent_dim": values})


def test_filters_and_orders_go_to_the_service(direct: Client) -> None:
    for name in ("b", "a", "c"):
        direct.submit(ppca_spec(), name=name, tags=["x"] if name != "c" else [])
    listed = direct.experiments(filter='tag = "x"', order_by="name", limit=1)
    assert [one["name"] for one in listed] == ["a", "b"]
    with pytest.raises(Refused, match=r"column 1: there is no field nam: did you mean name\?"):
        list(direct.experiments(filter="nam = a"))


def test_curves_of_more_experiments_than_one_request_allows(
    direct: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptlab.client.MAX_AT_ONCE", 2)
    ids = [direct.submit(ppca_spec())["id"] for _ in range(5)]
    found = direct.curves_of(iter(ids), series=["score"], seed=[4, 44])
    assert [one["experiment_id"] for one in found] == ids
    with pytest.raises(Refused, match="you have no experiment"):
        direct.curves_of([ids[0], "a"])

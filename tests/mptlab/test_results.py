"""The result that the commands show first: after training, with warnings, and the best K."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptlab import Client
from tests.support.commands import mpt_here
from tests.support.ppca_spec import ppca_spec

K = "model.latent_dim"
TRAIN = {
    "epochs": 30,
    "learning_rate": 0.05,
    "curve_at": [0, 10],
    "masks": {"schedule": "all", "per_size": 1},
}


@pytest.fixture
def trained(client: Client) -> dict[str, Any]:
    spec = ppca_spec(model__init="random", train=TRAIN, evaluate__masks__per_size=12)
    return client.experiments.create(spec, name="trained", wait=True, progress=False).document


def final(experiment: dict[str, Any], name: str, **labels: int) -> Any:
    """The value of a metric of the only seed, as `/metrics` has it."""
    (value,) = (
        one["value"] for one in experiment["metrics"]
        if one["name"] == name and one["labels"] == {"seed": 4, **labels}
    )  # fmt: skip
    return value


def test_show_prints_the_result_after_training_first(
    environment: dict[str, str], trained: dict[str, Any]
) -> None:
    code, shown, error = mpt_here(environment, "show", "trained")
    assert (code, error) == (0, "")
    lines = shown.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("LML"))
    before, after = (f"{final(trained, 'lml', **at):.6g}" for at in ({"epoch": 0}, {}))
    assert float(after) > float(before)
    assert lines[first].split()[:3] == ["LML", after, "nats"]
    assert lines[first + 1].split() == [before, "at", "epoch", "0", "→", after]
    assert lines[first + 2].split()[0] == "MPT"
    assert "MPT - LML is" in lines[first + 2]
    metrics = [line for line in lines if line.startswith("lml ")]
    assert after in metrics[0]
    assert "epoch=0" in metrics[1]


def test_a_list_has_the_result_after_training(
    environment: dict[str, str], client: Client, trained: dict[str, Any]
) -> None:
    after = final(trained, "lml")
    _, shown, _ = mpt_here(environment, "list", "--name", "trained")
    assert f"lml {after:.6g}; mpt " in shown
    (one,) = client.experiments.list(1, name="trained")
    assert one.metrics["lml"] == after
    assert one.metrics["lml[epoch=0]"] == final(trained, "lml", epoch=0)
    assert f"{after:.6g}" in one._repr_html_()


def test_show_prints_warnings(environment: dict[str, str], client: Client, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((40, 4)) * [1, 1, 1, 1000]
    np.save(tmp_path / "scales.npy", x)
    words = ("submit", "--data", str(tmp_path / "scales.npy"), "--latent-dim", "1")
    _, _, watched = mpt_here(environment, *words, "--name", "scales", "--watch")
    code, _, error = mpt_here(environment, "show", "scales")
    assert code == 0
    assert "standard deviations differ much between columns" in error
    assert error in watched


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of eight columns from three latent dimensions."""
    draws = np.random.default_rng(0)
    x = draws.standard_normal((300, 3)) @ draws.standard_normal((3, 8))
    file = tmp_path_factory.mktemp("data") / "three.csv"
    noisy = x + 0.3 * draws.standard_normal((300, 8))
    header = ",".join(f"c{i}" for i in range(8))
    np.savetxt(file, noisy, delimiter=",", header=header, comments="", fmt="%.6f")
    return file


def test_the_best_k_at_the_edge_is_said_with_the_command_that_extends_it(
    environment: dict[str, str], client: Client, three: Path
) -> None:
    words = ("submit", "--data", str(three), "--latent-dim", "1..2", "--name", "edge", "--watch")
    code, shown, error = mpt_here(environment, *words)
    assert code == 0, error
    sweep = next(client.sweeps())["id"]
    told = f"  K = 2 is the last value: extend to 4: mpt extend {sweep} --over {K}=3..4"
    assert shown.splitlines()[-1] == told
    assert mpt_here(environment, "table", "edge")[1] == shown
    command = told.partition("mpt ")[2].split()
    code, shown, error = mpt_here(environment, *command, "--watch")
    assert code == 0, error
    assert "* Best by LML, held out: K = 3" in shown
    assert "is the last value" not in shown
    rows = [line for line in shown.splitlines() if re.match(r" \d", line)]
    assert len(rows) == 4
    table = client.get_sweep(sweep).table_document()
    notes = [
        line[2:]
        for line in shown.splitlines()
        if line.startswith(("* ", "  ")) and line[2:].strip()
    ]
    assert notes[-len(table["notes"]) :] == table["notes"]


def test_a_sweep_is_extended_only_if_its_name_is_not_ambiguous(
    environment: dict[str, str], client: Client
) -> None:
    ids = [client.sweep(ppca_spec(), {"seeds": [[n]]}, name="twice").id for n in (1, 2)]
    code, _, error = mpt_here(environment, "extend", "twice", "--over", "seeds=3")
    assert code == 2
    assert "matches several sweeps, give an id" in " ".join(error.replace("│", "").split())
    assert mpt_here(environment, "extend", ids[0], "--over", "seeds=3,4") == (0, f"{ids[0]}\n", "")
    code, _, error = mpt_here(environment, "extend", ids[0], "--over", "seeds=4,5")
    assert (code, error) == (0, "mpt: the sweep already has seeds = 4\n")
    code, _, error = mpt_here(environment, "extend", ids[0], "--over", "seeds=3,5")
    assert (code, error) == (0, "mpt: the sweep already has seeds = 3, 5\n")
    assert [row["seeds"] for row in client.get_sweep(ids[0]).table()] == [[1], [3], [4], [5]]
    assert len(client.get_sweep(ids[1]).table()) == 1


def test_a_comparison_of_different_data_says_so(
    environment: dict[str, str], client: Client
) -> None:
    specs = [ppca_spec(model__init="random", data__n=n) for n in (50, 60)]
    runs = [client.experiments.create(spec, wait=True, progress=False).id for spec in specs]
    _, shown, _ = mpt_here(environment, "compare", *runs)
    note = "The data differ (data.n): their metrics do not tell which model is better."
    assert shown.splitlines()[-1] == note
    assert note not in mpt_here(environment, "compare", runs[0], runs[0])[1]
    assert json.loads(mpt_here(environment, "compare", *runs, "--json")[1])[0]["data.n"] == 50

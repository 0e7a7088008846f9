"""The command line, as a user types it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptlab import Client, Refused, serve
from tests.support.ppca_spec import ppca_spec


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running embedded service, and the environment that finds it."""
    folder = tmp_path_factory.mktemp("embedded")
    port = serve.free_port()
    url = f"http://127.0.0.1:{port}"
    with serve.embedded(folder / "store", port, folder / "log"):
        key = (folder / "store" / "api-key").read_text().strip()
        with Client(url, key) as client:
            serve.wait_until(client.is_ready)
        yield {"MPT_URL": url, "MPT_STORE": str(folder / "store")}


@pytest.fixture
def client(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Client() as made:
        yield made


def mpt(environment: dict[str, str], *arguments: str, text: str = "") -> tuple[int, str, str]:
    command = [sys.executable, "-c", "from mptlab.cli import main; main()", *arguments]
    done = subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_submit_wait_curves(environment: dict[str, str], tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(ppca_spec()))
    code, experiment_id, _ = mpt(environment, "submit", str(spec), "--name", "first")
    assert code == 0
    code, metrics, _ = mpt(environment, "wait", experiment_id.strip())
    assert code == 0
    assert [line.split()[0] for line in metrics.splitlines()] == ["lml", "mpt", "difference"]
    file = tmp_path / "curves.json"
    code, _, _ = mpt(environment, "curves", experiment_id.strip(), "--output", str(file))
    assert code == 0
    (series,) = json.loads(file.read_text())
    assert series["x"] == [1, 2, 3, 4, 5, 6]


def test_the_queue_and_ones_share_of_it(environment: dict[str, str], client: Client) -> None:
    spec = ppca_spec(compute__device="cuda")
    waiting = client.submit(spec)["id"]
    code, output, _ = mpt(environment, "queue")
    client.cancel(waiting)
    assert code == 0
    names, figures, limits, *items = output.splitlines()
    assert names.split()[:2] == ["RawShares", "NormShares"]
    assert figures.split()[:2] == ["1", "1"]
    assert limits.startswith("running 0, submitted 1 of ")
    assert items == [f"{waiting}  no GPU worker is registered; starts: unknown"]


def test_submit_from_standard_input_and_wait(environment: dict[str, str]) -> None:
    code, output, _ = mpt(environment, "submit", "-", "--wait", text=json.dumps(ppca_spec()))
    assert code == 0
    assert "mpt" in output


def test_what_is_refused_is_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    text = json.dumps(ppca_spec(model__latent_dim=9))
    code, output, error = mpt(environment, "submit", "-", text=text)
    assert (code, output) == (1, "")
    assert error.startswith("mpt: /spec/model/latent_dim: latent_dim is less than")
    code, _, error = mpt(environment, "wait", "nothing")
    assert (code, error) == (1, "mpt: you have no experiment of this id\n")
    lost = {**environment, "MPT_STORE": str(tmp_path)}
    code, _, error = mpt(lost, "wait", "nothing")
    assert code == 1
    assert "set MPT_API_KEY" in error
    url = f"http://127.0.0.1:{serve.free_port()}"
    down = {**environment, "MPT_URL": url, "MPT_RETRY_S": "0"}
    code, _, error = mpt(down, "wait", "nothing")
    assert code == 1
    assert error.count("\n") == 1


def test_the_python_client(client: Client) -> None:
    spec = ppca_spec(seeds=[1, 2])
    assert client.validate(spec)["masks"] == 48
    submitted = client.submit(spec, name="from Python", tags=["t"])
    seen: list[str] = []
    ended = client.wait(submitted["id"], timeout_s=60, on_change=lambda e: seen.append(e["status"]))
    assert ended["status"] == seen[-1] == "succeeded"
    assert len(client.curves(submitted["id"])) == 2
    (one,) = client.curves(submitted["id"], "score", seed=2)
    assert one["labels"] == {"seed": 2}
    assert submitted["id"] in [e["id"] for e in client.experiments(limit=1)]
    with pytest.raises(Refused, match="is succeeded"):
        client.cancel(submitted["id"])
    with pytest.raises(Refused) as refused:
        client.submit({**spec, "seeds": []})
    assert refused.value.document["errors"][0]["pointer"] == "/spec/seeds"

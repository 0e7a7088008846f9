"""A family from outside: the toy package of tests/support/markov, in processes that find it
installed. Nothing of the project is edited."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptcore.protocol.exit_codes import INVALID
from mptcore.specs import SpecError, validate_spec
from mptlab import Client, Refused, serve
from service.settings import Settings
from tests.support.outside import MARKOV, install
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[2]
OBSERVATIONS = (np.random.default_rng(3).random((9, 7)) < 0.4).astype(int)
SPEC: dict[str, Any] = {
    "model": {"family": "markov", "stay": 0.8},
    "data": {"source": "upload", "dataset": "chain", "n": 9, "dim": 7},
    "evaluate": {"masks": {"schedule": "all", "design": "exhaustive"}},
    "compute": {"threads": 1, "memory_mib": 1, "device": "cpu"},
}


def log_marginal() -> float:
    """Return the mean of log p(x), by hand."""
    signs = 2 * OBSERVATIONS - 1
    steps = np.where(signs[:, 1:] == signs[:, :-1], 0.8, 0.2)
    mean: float = np.log(0.5) + np.log(steps).sum(1).mean()
    return mean


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    install(site)
    return site


def run(
    site: Path, *arguments: str, text: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with the modules of a folder. Its loops are not compiled."""
    own = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "MPT_KERNELS": "torch"}
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **own, **environment},
        input=text, capture_output=True, text=True,
    )  # fmt: skip


def test_an_unregistered_family_is_unknown() -> None:
    with pytest.raises(SpecError, match=r"/model/family: one of 'ppca', .*'masked_lm'$"):
        validate_spec(SPEC)


def test_the_toy_family_runs_through_the_whole_filter(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "datasets" / "chain"
    folder.mkdir(parents=True)
    np.save(folder / "data.npy", OBSERVATIONS.astype(float))
    done = run(site, "-m", "mptcore", text=json.dumps(SPEC), MPT_STORE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    values = {line["name"]: line["value"] for line in lines if line["record"] == "metric"}
    assert [line["x"] for line in lines if line.get("series") == "score"] == list(range(1, 8))
    assert values["mpt"] == pytest.approx(values["lml"], abs=1e-10)
    assert values["lml"] == pytest.approx(log_marginal())


def test_bad_specs_of_the_toy_family_are_refused_by_field(site: Path) -> None:
    wrong = {**SPEC, "model": {"family": "markov", "stay": 2}, "train": {"epochs": 3}}
    done = run(site, "-m", "mptcore", text=json.dumps(wrong))
    assert done.returncode == INVALID
    assert set(done.stderr.splitlines()) == {
        "/model/stay: less than 1, not 2",
        "/train: null: this family has no such part",
    }


def test_a_run_that_cannot_be_imported_fails_with_the_reason(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "markov_chain" / "run.py").write_text("import not_there")
    done = run(tmp_path, "-m", "mptcore", text=json.dumps(SPEC))
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["record"], last["cause"]) == ("failure", "error")
    assert "No module named 'not_there'" in last["message"]


@pytest.mark.slow
def test_the_toy_family_passes_the_contract(tmp_path: Path, site: Path) -> None:
    """It takes ten seconds."""
    test = shutil.copy(MARKOV / "test_markov.py", tmp_path)
    options = "-p", "no:cacheprovider", "--rootdir", str(tmp_path)
    done = run(site, "-m", "pytest", "-q", *options, str(test), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr


DESCRIPTION = "Probability that a dimension repeats the one before."
ASK_THE_SERVICE = """
import json, sys
from fastapi.testclient import TestClient
from docs.reference import pages
from service.app import create_app
from service.settings import Settings
settings = Settings()
key = settings.key_file.read_text().strip()
with TestClient(create_app(settings), headers={"Authorization": f"Bearer {key}"}) as client:
    spec = json.load(sys.stdin)
    answer = client.post("/v1/experiments:validate", json={"spec": spec})
    broken = {**spec, "model": {"family": "broken"}}
    refused = client.post("/v1/experiments:validate", json={"spec": broken})
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    ready = client.get("/readyz").json()
    listed = client.get("/v1/experiments", params={"family": "markov"}).status_code
    page = client.get("/new").text
answers = answer.json(), refused.json()
print(json.dumps([*answers, schemas, pages()["spec-fields.md"], ready, listed, page]))
"""


@pytest.mark.slow
def test_the_service_the_pages_and_the_docs_describe_the_toy_family(
    site: Path, settings: Settings, tmp_path: Path
) -> None:
    """A package that cannot be imported is reported, and stops nothing. It starts a service."""
    shutil.copytree(site, tmp_path / "site")
    install(tmp_path / "site", package="broken-one", family="broken", experiment="not_there:Spec")
    data = {"source": "digits", "binarize": "threshold"}
    text = json.dumps({**SPEC, "data": data, "evaluate": {}})
    done = run(tmp_path / "site", "-c", ASK_THE_SERVICE, text=text, MPT_STORE=str(settings.store))
    assert done.returncode == 0, done.stderr
    answer, refused, schemas, page, ready, listed, html = json.loads(done.stdout)
    assert answer["spec"]["model"] == SPEC["model"]
    assert answer["masks"] == 64 * 100
    assert schemas["MarkovModel"]["properties"]["stay"]["description"] == DESCRIPTION
    assert f"| `stay` | number (above 0, below 1) |  | {DESCRIPTION} |\n" in page
    assert listed == 200
    assert "markov masked_lm" in html
    (warning,), (problem,) = ready["warnings"], refused["errors"]
    assert problem == {"pointer": "/spec/model/family", "detail": warning}
    assert "'broken'" in warning
    assert "broken-one 1.0" in warning


@pytest.mark.parametrize("module", ["service", "worker"])
def test_no_process_starts_with_two_packages_of_a_family(
    tmp_path: Path, settings: Settings, module: str
) -> None:
    install(tmp_path)
    install(tmp_path, package="other-chain")
    arguments = ["cpu"] if module == "worker" else []
    done = run(tmp_path, "-m", module, *arguments, MPT_STORE=str(settings.store))
    assert done.returncode == 1
    assert "markov-chain and other-chain" in done.stderr


@contextmanager
def served(python: Path, store: Path, log: Path) -> Iterator[Client]:
    """A client of `mpt serve`, started by this interpreter, with one worker."""
    port = serve.free_port()
    command = "from mptlab.cli import main; main()"
    words = ["serve", "--port", str(port), "--workers", "1", "--device", "cpu"]
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [python, "-c", command, *words],
            env={**os.environ, "MPT_STORE": str(store)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until((store / "api-key").exists)
        with Client(f"http://127.0.0.1:{port}", serve.store_key(store)) as client:
            wait_until(client.is_ready)
            yield client
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
def test_a_package_that_pip_installs_runs_in_a_lab_and_can_be_removed(tmp_path: Path) -> None:
    """It makes a virtual environment, and starts a whole service twice. An edit of the sources is
    another package for the cache. Without the package its
    experiments are shown as they are stored, and nothing new of the family is accepted."""
    venv, store, sources = tmp_path / "venv", tmp_path / "store", tmp_path / "markov"
    shutil.copytree(MARKOV, sources)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    here = sysconfig.get_paths()["purelib"]  # all other packages are those of this environment
    (modules,) = venv.glob("lib/python*/site-packages")
    (modules / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "install", *options, sources], check=True)

    data = tmp_path / "chain.csv"
    np.savetxt(data, OBSERVATIONS, fmt="%d", delimiter=",")
    with served(python, store, tmp_path / "log") as client:
        upload = client.upload(data, header=False)
        spec = {**SPEC, "data": {"source": "upload", "dataset": upload["id"]}}
        done = client.wait(client.submit(spec)["id"], timeout_s=120)
        assert done["status"] == "succeeded", done["failure"]
        metrics = {metric["name"]: metric["value"] for metric in done["metrics"]}
        assert metrics["mpt"] == pytest.approx(log_marginal())
        (attempt,) = client.get(done["id"])["attempts"]
        assert attempt["environment"]["packages"]["markov-chain"].startswith("1.0, sources ")
        (worker,) = client.workers()
        assert "markov" in worker["families"]
        assert client.submit(spec)["cached_from"] == done["id"]
        run_file = modules / "markov_chain" / "run.py"
        source = run_file.read_text()
        run_file.write_text(source.replace("* alike) / 2", "* alike) / 4"))
        edited = client.wait(client.submit(spec)["id"], timeout_s=120)  # by the edited sources
        (mpt,) = (metric["value"] for metric in edited["metrics"] if metric["name"] == "mpt")
        assert mpt < log_marginal() - 1
        run_file.write_text(source)
        assert client.submit(spec)["cached_from"] == done["id"]

    subprocess.run([*pip, "uninstall", "--yes", "markov-chain"], check=True)
    with served(python, store, tmp_path / "log") as client:
        assert client.get(done["id"])["spec"] == done["spec"]
        with pytest.raises(Refused, match="/model/family: one of 'ppca'"):
            client.submit(done["spec"])

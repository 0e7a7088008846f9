"""The toy family of tests/support/markov, registered in a copy of the source tree: it runs, and the
service and the docs describe it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptcore.protocol.exit_codes import INVALID
from mptcore.specs import SpecError, validate_spec
from service.settings import Settings
from tests.support.markov import register
from tests.support.markov.contract import OBSERVATIONS

SPEC: dict[str, Any] = {
    "model": {"family": "markov", "stay": 0.8},
    "data": {"source": "upload", "dataset": "chain", "n": 9, "dim": 7},
    "evaluate": {"masks": {"schedule": "all", "design": "exhaustive"}},
    "compute": {"threads": 1, "memory_mib": 1, "device": "cpu"},
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("registered") / "tree"
    register(tree)
    return tree


def run(
    tree: Path, *arguments: str, text: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in the tree, whose loops are not compiled."""
    own = {"PYTHONPATH": str(tree), "MPT_KERNELS": "torch"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree, env={**os.environ, **own, **environment},
        input=text, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_registered_family_passes_the_contract(tree: Path) -> None:
    done = run(tree, "-m", "pytest", "-q", "test_markov.py", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_toy_family_runs_through_the_whole_filter(tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "datasets" / "chain"
    folder.mkdir(parents=True)
    np.save(folder / "data.npy", OBSERVATIONS)
    done = run(tree, "-m", "mptcore", text=json.dumps(SPEC), MPT_STORE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    values = {line["name"]: line["value"] for line in lines if line["record"] == "metric"}
    assert [line["x"] for line in lines if line.get("series") == "score"] == list(range(1, 8))
    assert values["mpt"] == pytest.approx(values["lml"], abs=1e-10)
    signs = 2 * OBSERVATIONS - 1
    steps = np.where(signs[:, 1:] == signs[:, :-1], 0.8, 0.2)
    assert values["lml"] == pytest.approx(np.log(0.5) + np.log(steps).sum(1).mean())


def test_bad_specs_of_the_toy_family_are_refused_by_field(tree: Path) -> None:
    wrong = {**SPEC, "model": {"family": "markov", "stay": 2}}
    done = run(tree, "-m", "mptcore", text=json.dumps(wrong))
    assert (done.returncode, done.stderr) == (INVALID, "/model/stay: less than 1, not 2\n")


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
    answer = client.post("/v1/experiments:validate", json={"spec": json.load(sys.stdin)})
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
print(json.dumps([answer.json(), schemas, pages()["spec-fields.md"]]))
"""


@pytest.mark.slow
def test_the_service_and_the_docs_describe_the_toy_family(tree: Path, settings: Settings) -> None:
    spec = {**SPEC, "data": {"source": "digits", "binarize": "threshold"},
            "evaluate": {}}  # fmt: skip
    done = run(tree, "-c", ASK_THE_SERVICE, text=json.dumps(spec), MPT_STORE=str(settings.store))
    assert done.returncode == 0, done.stderr
    answer, schemas, page = json.loads(done.stdout)
    assert answer["spec"]["model"] == SPEC["model"]
    assert answer["masks"] == 64 * 100
    assert schemas["MarkovModel"]["properties"]["stay"]["description"] == DESCRIPTION
    assert f"| `stay` | number (above 0, below 1) |  | {DESCRIPTION} |\n" in page


def test_an_unregistered_family_is_unknown() -> None:
    with pytest.raises(SpecError, match=r"/model/family: one of 'ppca', .*'masked_lm'$"):
        validate_spec(SPEC)

"""Clients generated from `/openapi.json` by public tools, used with the real service. The
TypeScript client is tested only after `npm ci`.
"""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from mptcore.presets import PRESETS
from service.db.engine import Database
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claim_next
from tests.support.browser import Service
from tests.support.filled_lab import LEASE_S, end, points

ROOT = Path(__file__).parents[3]
NODE_MODULES = ROOT / "node_modules"
NO_GENERATOR = "openapi-python-client is not installed: make setup"
BINARY = {"application/zip": "application/octet-stream", "*/*": "application/octet-stream"}
"""Media types that the generator does not know, and their replacements (docs/api.md)."""

pytestmark = pytest.mark.usefixtures("inspected_here")


@pytest.fixture(scope="module")
def service(prepared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    store = shutil.copytree(prepared_store, tmp_path_factory.mktemp("generated") / "store")
    service = Service(Settings(store=store, database_url=None))
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def document(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("document") / "openapi.json"
    file.write_bytes(httpx.get(f"{service.url}/openapi.json", timeout=60.0).content)
    return file


@pytest.fixture(scope="module")
def generated(document: Path) -> Iterator[ModuleType]:
    """The package that openapi-python-client makes; it warns of nothing."""
    try:
        generator: Any = importlib.import_module("openapi_python_client")
        config: Any = importlib.import_module("openapi_python_client.config")
    except ImportError:
        pytest.skip(NO_GENERATOR)
    settings = config.Config.from_sources(
        config.ConfigFile(content_type_overrides=BINARY, post_hooks=[]),
        config.MetaType.NONE,
        document,
        "utf-8",
        False,
        document.parent / "generated_mpt_client",
    )
    assert [f"{one.header}: {one.detail}" for one in generator.generate(config=settings)] == []
    sys.path.insert(0, str(document.parent))
    try:
        yield importlib.import_module("generated_mpt_client")
    finally:
        sys.path.remove(str(document.parent))


def operation(name: str) -> Any:
    return importlib.import_module(f"generated_mpt_client.api.{name}").sync


def model(name: str) -> Any:
    return getattr(importlib.import_module("generated_mpt_client.models"), name)


def run(service: Service) -> None:
    """Record five points for each of two seeds, like a worker."""
    with closing(Database(service.settings.url)) as database:
        claim = claim_next(database, LEASE_S)
        points(database, claim, range(1, 6))
        end(database, claim, Status.SUCCEEDED)


SUBMISSION = {
    "spec": {
        "model": {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"},
        "evaluate": {"masks": {"schedule": "all", "per_size": 5}},
        "seeds": [4, 44],
    },
    "name": "by Python",
}


def test_a_generated_python_client_works(generated: Any, service: Service) -> None:
    """Upload, submit, poll, curves."""
    key = service.settings.key_file.read_text().strip()
    client = generated.AuthenticatedClient(
        base_url=service.url, token=key, timeout=httpx.Timeout(60.0)
    )
    file = importlib.import_module("generated_mpt_client.types").File
    with (service.settings.store.parent / "numbers.csv").open("w+b") as numbers:
        numbers.write(b"a,b\n1,2\n3,4\n5,7\n")
        numbers.seek(0)
        upload_dataset = operation("datasets.upload_v1_datasets_post")
        upload = upload_dataset(client=client, body=file(payload=numbers), name="numbers.csv")
    assert (upload.n, upload.dim) == (3, 2)
    data = {"source": "upload", "dataset": upload.id}
    body = model("Submission").from_dict(
        SUBMISSION | {"spec": {**SUBMISSION["spec"], "data": data}}  # type: ignore[dict-item]
    )
    made = operation("experiments.submit_v1_experiments_post")(
        client=client, body=body, idempotency_key="once"
    )
    assert (made.name, made.status) == ("by Python", "queued")
    run(service)
    get = operation("experiments.get_experiment_v1_experiments_experiment_id_get")
    ended = get(made.id, client=client, prefer="wait=5")
    assert (ended.status, ended.spec["model"]["latent_dim"]) == ("succeeded", 1)
    curves = operation("curves.get_curves_v1_experiments_experiment_id_curves_get")
    (first, _) = curves(made.id, client=client).series
    assert (first.name, first.labels.to_dict(), first.x) == ("score", {"seed": 4}, [1, 2, 3, 4, 5])
    refused = get("0" * 32, client=client)
    assert (refused.status, refused.reason) == (404, "not_found")


@pytest.mark.usefixtures("generated")
def test_generated_models_keep_every_spec() -> None:
    specs = [one.model_dump(mode="json") for preset in PRESETS.values() for one in preset.specs]
    for spec in specs:
        submission = {"spec": spec, "tags": ["t"]}
        assert model("Submission").from_dict(submission).to_dict()["spec"] == spec


def typescript_client_works(document: Path, service: Service) -> None:
    """It passes the type checker, and does the same."""
    folder = document.parent
    (folder / "node_modules").symlink_to(NODE_MODULES)
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(ROOT / "tests" / "support" / "generated" / "use.ts", folder)

    def node(*arguments: str) -> None:
        done = subprocess.run(
            ["node", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    # A field with a default may be left out of a request (docs/api.md).
    generator = "node_modules/openapi-typescript/bin/cli.js"
    node(generator, str(document), "-o", "schema.d.ts", "--default-non-nullable=false")
    options = ("--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom")
    node("node_modules/typescript/bin/tsc", *options, "use.ts")
    key = service.settings.key_file.read_text().strip()
    program = ["node", "use.js", service.url, key]
    with subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert len(process.stdout.readline().strip()) == 32
        run(service)
        shown = process.stdout.read()
    assert shown == "succeeded score 1,2,3,4,5; score 1,2,3,4,5\n"


if NODE_MODULES.exists():
    test_a_generated_typescript_client_works = typescript_client_works

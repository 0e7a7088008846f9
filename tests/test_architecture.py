"""Allowed imports between folders."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FORBIDDEN = {
    "service.app": ["torch", "numba", "transformers", "datasets", "worker"],
    "mptlab, mptlab.cli, mptlab.demo": ["torch", "service", "worker", "sqlalchemy"],
    "worker.main": ["torch", "fastapi"],
    "mptcore.data.inspect": ["torch", "sklearn"],
    "mptcore.run": ["numba"],
    "mptcore.specs, mptcore.presets, mptcore.protocol.code, mptcore.protocol.orders,"
    "mptcore.protocol.records": ["torch", "numba", "numpy", "sklearn", "pandas", "scipy"],
}
"""Modules that must not be loaded by importing these modules together."""
ALL_OF_MPTCORE = """
import pkgutil, mptcore
for module in pkgutil.walk_packages(mptcore.__path__, "mptcore."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
"""


def loaded(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("modules", FORBIDDEN)
def test_modules_do_not_load_forbidden_packages(modules: str) -> None:
    assert loaded(f"import {modules}").isdisjoint(FORBIDDEN[modules])


def test_mptcore_knows_nothing_of_the_service() -> None:
    modules = loaded(ALL_OF_MPTCORE)
    assert "torch" in modules
    assert "mptcore.run" in modules
    others = {"fastapi", "starlette", "sqlalchemy", "celery", "httpx"}
    assert modules.isdisjoint(others | {"service", "worker", "mptlab"})


MPTCORE = Path(__file__).parents[1] / "mptcore"
LAYERS = ("specs", "protocol", "runtime", "data", "estimation", "training", "families")
"""Layers of mptcore, lowest first: a module imports only its own and lower layers."""
TOP = ("run", "__main__")
"""Modules above all layers. Only run.py imports the families."""
BETWEEN_FAMILIES = {("vae", "linear_gaussian.baseline"), ("vae", "linear_gaussian.models")}
"""A VAE is compared with a PPCA, so it imports its spec and its model."""


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules of mptcore that a file imports anywhere, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module)):
                names = [f"{module}.{alias.name}" for alias in node.names]
                yield from (name for name in names if name.startswith("mptcore."))
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.startswith("mptcore."))
            case ast.Call(args=[ast.Constant(value=str(module)), *_]) if module.startswith(
                "mptcore."
            ):
                yield module  # importlib.import_module


def modules() -> list[Path]:
    return sorted(path.relative_to(MPTCORE) for path in MPTCORE.rglob("*.py"))


@pytest.mark.parametrize("module", modules(), ids=str)
def test_a_module_of_mptcore_imports_only_lower_layers(module: Path) -> None:
    own = module.parts[0].removesuffix(".py")
    for name in imports_of(MPTCORE / module):
        layer = name.split(".")[1]
        if own in TOP or own == "__init__":
            continue
        assert layer not in TOP, f"{name} is above {module}"
        if own == "presets":
            assert layer in ("presets", "specs")
            continue
        assert layer in LAYERS, f"{name} belongs to no layer"
        assert LAYERS.index(layer) <= LAYERS.index(own), f"{name} is above {module}"


@pytest.mark.parametrize("folder", ["families", "specs/families"])
def test_families_do_not_import_each_other(folder: str) -> None:
    package = folder.replace("/", ".")
    for module in (path for path in modules() if path.is_relative_to(folder)):
        family = module.relative_to(folder).parts[0].removesuffix(".py")
        for name in imports_of(MPTCORE / module):
            if not name.startswith(f"mptcore.{package}."):
                continue
            other = name.removeprefix(f"mptcore.{package}.").split(".")
            if other[0] != family:
                assert (family, ".".join(other[:2])) in BETWEEN_FAMILIES, f"{module}: {name}"


def test_only_run_imports_all_families() -> None:
    knowing = [
        module
        for module in modules()
        if any(name.startswith("mptcore.families.") for name in imports_of(MPTCORE / module))
        and module.parts[0] != "families"
    ]
    assert knowing == [Path("run.py")]


SERVICE = Path(__file__).parents[1] / "service"
LAYERS_OF_SERVICE = (
    "timings", "logs", "refusals", "fair_share", "settings", "schemas", "places",
    "store_space", "db", "models",
    "accounts", "webhooks", "workers", "queue", "records", "datasets", "experiments", "sweeps",
    "submission", "events", "presets", "curves", "operations",
    "web", "routes", "ui", "app", "__main__",
)  # fmt: skip
"""Layers of the service, from the lowest: its folders and single modules, the `models.py` of all
folders, and their routes. None imports a higher one, so any folder may use the tables of another
one, and only the app knows routes."""
HTTP = ("fastapi", "starlette")
"""Only these know HTTP: routes, `web`, `ui` and the app."""
KNOW_HTTP = ("web", "routes", "ui", "app")


def imports(path: Path) -> Iterator[str]:
    """All names that a file imports, anywhere in it, as dotted paths."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module)):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Import(names=names):
                yield from (alias.name for alias in names)


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "documents" not in path.parts)


def layer_of(name: str) -> str:
    """Return the layer of a name such as `service.accounts.models.User`."""
    parts = name.split(".")[1:]
    module = parts[1] if len(parts) > 1 else ""
    if module == "models":
        return "models"
    if module == "routes" or module.endswith("_routes") or parts[:2] == ["curves", "formats"]:
        return "routes"
    return parts[0]


@pytest.mark.parametrize("folder", sorted(path.stem for path in SERVICE.glob("[a-z_]*")))
def test_each_folder_of_the_service_has_its_place(folder: str) -> None:
    assert folder in (*LAYERS_OF_SERVICE, "__init__", "__pycache__", "py")


@pytest.mark.parametrize("file", python_files(SERVICE), ids=lambda f: str(f.relative_to(SERVICE)))
def test_a_module_of_the_service_imports_only_lower_layers(file: Path) -> None:
    module = ".".join(file.relative_to(SERVICE.parent).with_suffix("").parts)
    if module == "service.__init__":
        return
    layer = layer_of(module)
    for name in imports(file):
        if layer not in KNOW_HTTP:
            assert name.split(".")[0] not in HTTP, f"{name}: only routes, web, ui and app import it"
        if name.startswith("service."):
            other = LAYERS_OF_SERVICE.index(layer_of(name))
            assert other <= LAYERS_OF_SERVICE.index(layer), f"{name} is above {file}"


def test_the_worker_knows_nothing_of_http() -> None:
    for file in python_files(SERVICE.parent / "worker"):
        ours = [name for name in imports(file) if name.startswith("service.")]
        assert {layer_of(name) for name in ours}.isdisjoint(KNOW_HTTP), file

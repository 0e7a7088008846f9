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


def loaded(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("modules", FORBIDDEN)
def test_modules_do_not_load_forbidden_packages(modules: str) -> None:
    assert loaded(f"import {modules}").isdisjoint(FORBIDDEN[modules])


MPTCORE = Path(__file__).parents[1] / "mptcore"
LAYERS = ("stats", "specs", "protocol", "runtime", "data", "estimation", "training", "families")
"""Layers of mptcore, lowest first: a module imports only its own and lower layers."""
FOR_PRESETS = ("presets", "specs", "stats")
TOP = ("run", "__main__")
"""Modules above all layers. Only run.py imports the families."""
BETWEEN_FAMILIES = {
    ("vae", f"linear_gaussian.{name}") for name in ("density", "initial", "PpcaModel", "routes")
}
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


def test_modules_of_mptcore_import_only_lower_layers() -> None:
    above = []
    for module in modules():
        layer = module.parts[0].removesuffix(".py")
        if layer in (*TOP, "__init__"):
            continue
        allowed = LAYERS[: LAYERS.index(layer) + 1] if layer in LAYERS else FOR_PRESETS
        names = list(imports_of(MPTCORE / module))
        above += [f"{module}: {name}" for name in names if name.split(".")[1] not in allowed]
    assert not above, "\n".join(above)


def test_families_do_not_import_each_other() -> None:
    between = []
    for folder in ("families", "specs/families"):
        package = f"mptcore.{folder.replace('/', '.')}."
        for module in (path for path in modules() if path.is_relative_to(folder)):
            family = module.relative_to(folder).parts[0].removesuffix(".py")
            for name in imports_of(MPTCORE / module):
                other = name.removeprefix(package).split(".")[:2]
                allowed = other[0] == family or (family, ".".join(other)) in BETWEEN_FAMILIES
                if name.startswith(package) and not allowed:
                    between.append(f"{module}: {name}")
    assert not between, "\n".join(between)


def test_only_one_module_chooses_between_solvers() -> None:
    folder = "mptcore.families.linear_gaussian."
    solvers = [f"{folder}{name}_solver" for name in ("residual", "pattern")]
    choosing = {
        module
        for module in modules()
        if any(name.startswith(tuple(solvers)) for name in imports_of(MPTCORE / module))
    }
    assert choosing == {Path("families/linear_gaussian/routes.py")}


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
    "timings", "logs", "refusals", "fair_share", "vocabulary", "settings", "schemas", "long_lists",
    "places", "store_space", "db", "models",
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


def test_mptcore_knows_nothing_of_the_service() -> None:
    others = {
        "fastapi",
        "starlette",
        "sqlalchemy",
        "celery",
        "httpx",
        "service",
        "worker",
        "mptlab",
    }
    files = python_files(MPTCORE)
    assert files
    for file in files:
        assert others.isdisjoint(name.split(".")[0] for name in imports(file)), file


def layer_of(name: str) -> str:
    """Return the layer of a name such as `service.accounts.models.User`."""
    parts = name.split(".")[1:]
    module = parts[1] if len(parts) > 1 else ""
    if module == "models":
        return "models"
    if module == "routes" or module.endswith("_routes") or parts[:2] == ["curves", "formats"]:
        return "routes"
    return parts[0]


def test_each_folder_of_the_service_has_its_place() -> None:
    names = {path.stem for path in SERVICE.glob("[a-z_]*")}
    assert names - {*LAYERS_OF_SERVICE, "__init__", "__pycache__", "py"} == set()


def test_modules_of_the_service_import_only_lower_layers() -> None:
    wrong = []
    for file in python_files(SERVICE):
        module = ".".join(file.relative_to(SERVICE.parent).with_suffix("").parts)
        if module == "service.__init__":
            continue
        layer = layer_of(module)
        lower = LAYERS_OF_SERVICE[: LAYERS_OF_SERVICE.index(layer) + 1]
        for name in imports(file):
            if name.startswith("service.") and layer_of(name) not in lower:
                wrong.append(f"{module}: {name}")
            if name.split(".")[0] in HTTP and layer not in KNOW_HTTP:
                wrong.append(f"{module}: {name}")
    assert not wrong, "\n".join(wrong)


def test_the_worker_knows_nothing_of_http() -> None:
    for file in python_files(SERVICE.parent / "worker"):
        ours = [name for name in imports(file) if name.startswith("service.")]
        assert {layer_of(name) for name in ours}.isdisjoint(KNOW_HTTP), file

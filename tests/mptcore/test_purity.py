"""Which packages mptcore may load, seen from a fresh process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"fastapi", "starlette", "sqlalchemy", "celery", "httpx", "service", "worker", "client"}
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "mptcore").rglob("*.py"))
    if path.name != "__main__.py"
]


def loaded(*modules: str) -> set[str]:
    """The top-level packages that importing some modules loads."""
    code = (
        f"import sys, {', '.join(modules)}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    return set(ran.stdout.decode().split())


def test_mptcore_loads_nothing_of_the_service() -> None:
    assert len(MODULES) > 10
    assert not loaded(*MODULES) & FORBIDDEN


def test_the_specs_load_no_torch() -> None:
    assert not loaded("mptcore.specs") & {"torch", "numpy", "sklearn", "pandas", "scipy"}


def test_the_presets_load_no_torch() -> None:
    assert not loaded("mptcore.presets") & {"torch", "numpy", "sklearn", "pandas", "scipy"}

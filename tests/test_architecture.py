"""The arrows: who may import whom."""

import subprocess
import sys

import pytest

FORBIDDEN = {
    "service.main": ["torch", "transformers", "datasets", "worker"],
    "mptlab": ["torch", "service", "worker", "sqlalchemy"],
    "mptlab.cli": ["torch", "service", "worker", "sqlalchemy"],
    "mptlab.demo": ["torch", "service", "worker", "sqlalchemy"],
    "worker.local": ["torch", "fastapi"],
    "mptcore.specs": ["torch", "numpy", "sklearn", "pandas", "scipy"],
    "mptcore.files.inspect": ["torch", "sklearn"],
    "mptcore.presets": ["torch", "numpy", "sklearn", "pandas", "scipy"],
}
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


@pytest.mark.parametrize("module", FORBIDDEN)
def test_a_module_does_not_load_what_is_not_its_own(module: str) -> None:
    assert loaded(f"import {module}").isdisjoint(FORBIDDEN[module])


def test_mptcore_knows_nothing_of_the_service() -> None:
    modules = loaded(ALL_OF_MPTCORE)
    assert "torch" in modules
    assert "mptcore.run" in modules
    others = {"fastapi", "starlette", "sqlalchemy", "celery", "httpx"}
    assert modules.isdisjoint(others | {"service", "worker", "mptlab"})

"""The digest of the code that computes."""

import hashlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from mptcore.protocol import code
from mptcore.protocol.code import (
    LIBRARIES,
    PACKAGES,
    code_digest,
    core_digest,
    package_versions,
)
from mptcore.specs.experiment import OutsideExperiment
from mptcore.specs.outside import OutsideFamilies, OutsideFamily, Package


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the digest that was computed before a test, or in it."""
    for cached in (core_digest, package_versions):
        cached.cache_clear()
    yield
    for cached in (core_digest, package_versions):
        cached.cache_clear()


def test_missing_packages_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "PACKAGES", ("torch", "no-such-package"))
    found = package_versions()
    assert {*found} == {"python", "torch", "no-such-package"}
    assert (found["torch"], found["no-such-package"]) == (version("torch"), "none")


def test_every_library_that_changes_results_has_a_version() -> None:
    assert {"python", *PACKAGES} == {*package_versions()}
    assert {*LIBRARIES} <= {*PACKAGES}


def test_other_library_versions_change_the_core_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    here = core_digest()
    forgotten_versions = {"torch": "9"}
    for cached in (core_digest, package_versions):
        cached.cache_clear()
    monkeypatch.setattr(code, "version", lambda name: forgotten_versions.get(name, version(name)))
    assert core_digest() != here


def test_the_code_of_a_family_from_outside_contains_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = []
    for module in ("colorsys", "this"):
        family = OutsideFamily(OutsideExperiment, Package("chain", "1.0", module))
        families = OutsideFamilies({"markov": family}, {}, [])
        monkeypatch.setattr(code, "outside_families", lambda families=families: families)
        digests.append(code_digest("markov"))
    assert len({*digests, core_digest()}) == 3
    assert {len(digest) for digest in digests} == {16}
    assert code_digest("ppca") == core_digest()


def test_the_core_is_the_digest_of_its_sources_and_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.py", "a/c.py", "protocol/code.py", "presets/a/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"source of {name}")
    (tmp_path / "notes.txt").write_text("no source")
    monkeypatch.setattr(code, "__file__", str(tmp_path / "protocol/code.py"))
    monkeypatch.setattr(code, "LIBRARIES", ("torch",))
    sources = b"".join(
        f"{name}\0source of {name}\0".encode() for name in ("a/c.py", "b.py", "protocol/code.py")
    )
    whole = hashlib.sha256(sources + f"torch {version('torch')}\n".encode()).hexdigest()
    assert core_digest() == whole[:16]

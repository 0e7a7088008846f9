"""Families from outside: registration, and packages that are refused."""

import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from mptcore.specs.outside import GROUP, OutsideFamilies, load
from tests.support.outside import install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("markov_chain")]:
        del sys.modules[name]


def registered(site: Path) -> OutsideFamilies:
    found = distributions(path=[str(site)])
    return load(entry for one in found for entry in one.entry_points if entry.group == GROUP)


def test_a_package_registers_a_family(site: Path) -> None:
    install(site)
    families = registered(site)
    assert not families.unusable
    assert not families.conflicts
    (family,) = families.usable.values()
    assert family.experiment.__name__ == "MarkovExperiment"
    assert (family.package.name, family.package.version) == ("markov-chain", "1.0")


def test_the_digest_is_that_of_the_sources(site: Path) -> None:
    install(site)
    package = registered(site).usable["markov"].package
    before = package.digest()
    assert registered(site).usable["markov"].package.digest() == before
    (site / "markov_chain" / "run.py").write_text("")
    assert package.digest() != before  # also in a process that imported it before
    shutil.rmtree(site / "markov_chain")
    assert package.digest() != before


@pytest.mark.parametrize(
    ("experiment", "family", "reason"),
    [
        ("not_there:Experiment", "markov", "No module named 'not_there'"),
        ("markov_chain.spec:Nothing", "markov", "Nothing"),
        ("markov_chain.broken:Experiment", "markov", "division by zero"),
        ("markov_chain.exits:Experiment", "markov", "SystemExit"),
        ("markov_chain.spec:MarkovModel", "markov", "no subclass of OutsideExperiment"),
        ("markov_chain.spec:MarkovExperiment", "chain", "'chain'"),
        ("markov_chain.spec:OutsideExperiment", "markov", "has no `run`"),
        ("markov_chain.named:VaeExperiment", "markov", "VaeExperiment"),
        ("markov_chain.vague:Vague", "markov", "not fully defined"),
    ],
)
def test_a_package_that_fails_stops_nothing(
    site: Path, experiment: str, family: str, reason: str
) -> None:
    """Its family is not there, and the reason names the package."""
    install(site, family=family, experiment=experiment)
    (site / "markov_chain" / "broken.py").write_text("1 / 0")
    (site / "markov_chain" / "exits.py").write_text("raise SystemExit(1)")
    same_name = "from markov_chain.spec import *\nclass VaeExperiment(MarkovExperiment):\n    pass"
    (site / "markov_chain" / "named.py").write_text(same_name)
    vague = "from markov_chain.spec import *\nclass Vague(MarkovExperiment):\n    more: 'NotThere'"
    (site / "markov_chain" / "vague.py").write_text(vague)
    families = registered(site)
    assert not families.usable
    assert reason in families.unusable[family]
    assert "markov-chain 1.0" in families.unusable[family]


def test_two_packages_with_a_family_are_named(site: Path) -> None:
    install(site)
    install(site, package="other-chain")
    families = registered(site)
    assert not families.usable
    (conflict,) = families.conflicts
    assert all(name in conflict for name in ("'markov'", "markov-chain", "other-chain"))


def test_a_package_cannot_replace_a_family_of_this_project(site: Path) -> None:
    install(site, family="ppca")
    families = registered(site)
    assert not families.usable
    (conflict,) = families.conflicts
    assert all(name in conflict for name in ("'ppca'", "markov-chain", "mptlab-server"))

"""Families from outside: kinds of models that packages on this machine register.

A package names the class of its experiments in the entry point group `mptlab.families`, under the
name of the family. An administrator has installed it, so it is trusted as this project is.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter

from mptcore.specs.built_in import BuiltIn
from mptcore.specs.experiment import OutsideExperiment

GROUP = "mptlab.families"
PROJECT = "mptlab-server"
DIGEST_DIGITS = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Package:
    """An installed package that registers a family."""

    name: str
    version: str
    module: str
    """Its top-level package or module."""

    def digest(self) -> str:
        """Return a digest of its Python files as they are now, not of the packages that it depends
        on. Sources may change while a process runs, and each run imports them anew."""
        spec = find_spec(self.module)
        assert spec is not None  # it was imported
        files = [
            (path.relative_to(folder), path)
            for folder in map(Path, spec.submodule_search_locations or ())
            for path in folder.rglob("*.py")
        ]
        if not spec.submodule_search_locations and spec.origin is not None:
            files = [(Path(Path(spec.origin).name), Path(spec.origin))]
        digest = sha256()
        for name, path in sorted(files):
            if path.is_file():
                digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()[:DIGEST_DIGITS]


@dataclass(frozen=True)
class OutsideFamily:
    """A family from outside that can be used."""

    experiment: type[OutsideExperiment]
    package: Package


@dataclass(frozen=True)
class OutsideFamilies:
    """Families that the packages of this machine register."""

    usable: Mapping[str, OutsideFamily]
    """Families by name."""
    unusable: Mapping[str, str]
    """Reasons why other families cannot be used, by name."""
    conflicts: Collection[str]
    """A sentence for each family that two packages register, with the names of both. The processes
    of the service do not start while there is one."""


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in an annotation: one, or the members of a union. OutsideExperiment stands
    for the experiments of all families from outside."""
    if annotation is OutsideExperiment:
        return [family.experiment for family in outside_families().usable.values()]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_of(part)]


def families_of(experiment: type[BaseModel]) -> list[str]:
    """Return the families of an experiment's model, in their order."""
    return [
        family
        for model in models_of(experiment.model_fields["model"].annotation)
        for family in get_args(model.model_fields["family"].annotation)
    ]


_BUILT_IN = models_of(BuiltIn)


@cache
def outside_families() -> OutsideFamilies:
    """Return the families of the installed packages. The first call imports these. It is not made
    while `mptcore.specs` is imported, because the packages import that themselves."""
    return load(entry_points(group=GROUP))


def load(registered: Iterable[EntryPoint]) -> OutsideFamilies:
    """Import the experiments of families. A package that cannot be imported stops nothing."""
    packages = {family: PROJECT for experiment in _BUILT_IN for family in families_of(experiment)}
    classes = {experiment.__name__ for experiment in _BUILT_IN}
    usable: dict[str, OutsideFamily] = {}
    unusable: dict[str, str] = {}
    conflicts = []
    for entry in sorted(registered, key=lambda entry: (entry.name, _distribution(entry)[0])):
        name, version = _distribution(entry)
        if entry.name in packages:
            unusable[entry.name] = f"two packages register it: {packages[entry.name]} and {name}"
            conflicts.append(f"the family {entry.name!r}: {unusable[entry.name]}; uninstall one")
            usable.pop(entry.name, None)
            continue
        packages[entry.name] = name
        try:
            experiment = entry.load()
            if (wrong := _wrong(entry, experiment, classes)) is not None:
                raise TypeError(wrong)
            TypeAdapter(experiment).json_schema()  # as the service describes it
            package = Package(name, version, entry.module.partition(".")[0])
        except (Exception, SystemExit) as error:
            cause = f"{type(error).__name__}: {error}".partition("\n")[0]
            unusable[entry.name] = f"its package {name} {version} cannot be imported: {cause}"
            log.exception("the family %r cannot be used: its package %s fails", entry.name, name)
            continue
        classes.add(experiment.__name__)
        usable[entry.name] = OutsideFamily(experiment, package)
    return OutsideFamilies(usable, unusable, conflicts)


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    """Return name and version of the package that has the entry point."""
    return ("unknown", "0") if entry.dist is None else (entry.dist.name, entry.dist.version)


def _wrong(entry: EntryPoint, experiment: Any, classes: Collection[str]) -> str | None:
    """Return why an object cannot be the experiment of a family, or None."""
    if not (isinstance(experiment, type) and issubclass(experiment, OutsideExperiment)):
        return f"{entry.value} is no subclass of OutsideExperiment"
    if not isinstance(getattr(experiment, "run", None), str):
        return f'{entry.value} has no `run`, the import path of its run as "module:Class"'
    if (families := families_of(experiment)) != [entry.name]:
        return f"the entry point is called {entry.name!r}, but model.family is one of {families}"
    if experiment.__name__ in classes:
        return f"another family has an experiment {experiment.__name__}: rename the class"
    return None

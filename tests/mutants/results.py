"""Results of mutmut and their report."""

import json
import os
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from mutmut.configuration import reset_config
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name, orig_function_and_class_names_from_key

EQUIVALENT = Path(__file__).with_name("equivalent.txt")
FORM = "{:44} {:>6} {:>8} {:>10} {:>7} {:>6}"
SURVIVED = (0, 5, 33)
"""Its tests passed, or none was collected, or none reaches it. Any other end is a kill: tests that
failed, that could not be imported, a time limit, a signal."""


@dataclass(frozen=True)
class Sample:
    """A share of the mutants, chosen by their names: the same each time."""

    one_in: int = 1
    part: int = 0

    def __contains__(self, mutant: str) -> bool:
        return crc32(mutant.encode()) % self.one_in == self.part


@dataclass
class Tally:
    """Results for the mutants of one module."""

    killed: int = 0
    unasked: int = 0
    equivalent: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Count another tally's mutants, too."""
        self.killed += other.killed
        self.unasked += other.unasked
        self.equivalent += other.equivalent
        self.survived += other.survived

    @property
    def share(self) -> str:
        """Share of killed mutants among those that were run and are not equivalent."""
        asked = self.killed + len(self.survived)
        return f"{self.killed / asked:.0%}" if asked else "-"


def mutants_of(work: Path, module: str) -> list[str]:
    """Return the names of all mutants that mutmut makes of a module."""
    with chdir(work):
        reset_config()
        made = mutate_file_contents(module, Path(module).read_text())
    return [get_mutant_name(Path(module), name) for name in made.mutant_names]


def meta_file(work: Path, module: str) -> Path:
    return work / "mutants" / f"{module}.meta"


def load(work: Path, module: str) -> dict[str, Any]:
    file = meta_file(work, module)
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def forget_survivors(work: Path, module: str) -> None:
    """Have the survivors asked again."""
    meta = load(work, module)
    if not meta:
        return
    codes = meta["exit_code_by_key"]
    meta["exit_code_by_key"] = {k: None if v in SURVIVED else v for k, v in codes.items()}
    written = meta_file(work, module).with_suffix(".new")
    written.write_text(json.dumps(meta))
    os.replace(written, meta_file(work, module))


def tally(work: Path, module: str, equivalent: Mapping[str, str], sample: Sample) -> Tally:
    found = Tally()
    for mutant, code in load(work, module).get("exit_code_by_key", {}).items():
        if mutant not in sample:
            continue
        if code is None:
            found.unasked += 1
        elif code not in SURVIVED:
            found.killed += 1
        else:
            change = described(work, module, mutant)
            (found.equivalent if change in equivalent else found.survived).append(change)
    return found


def described(work: Path, module: str, mutant: str) -> str:
    """A mutant in one line that outlives its number: file, function, the lines as changed."""
    with chdir(work):
        difference = get_diff_for_mutant(mutant, path=module).splitlines()[2:]
    name, owner = orig_function_and_class_names_from_key(mutant)
    where = f"{owner}.{name}" if owner else name
    changes = [f"{line[0]} {line[1:].strip()}" for line in difference if line[0] in "+-"]
    return f"{module} {where}: {'  '.join(changes)}"


def equivalents() -> dict[str, str]:
    """The mutants that change nothing anyone is promised, and why; one line each."""
    lines = EQUIVALENT.read_text().splitlines()
    parts = [line.rpartition("  ## ") for line in lines if line and not line.startswith("#")]
    return {mutant: reason for mutant, _, reason in parts}


def report(folders: Mapping[str, Path], sample: Sample) -> str:
    """Return the survivors of a sample, and the figures by module and by folder."""
    equivalent = equivalents()
    tallies = {module: tally(work, module, equivalent, sample) for module, work in folders.items()}
    lines = ["", *(change for found in tallies.values() for change in found.survived), ""]
    lines.append(FORM.format("module", "killed", "survived", "equivalent", "unasked", "share"))
    packages: dict[str, Tally] = {}
    for module, found in tallies.items():
        lines.append(_figures(module, found))
        packages.setdefault(f"{module.rpartition('/')[0]}/", Tally()).add(found)
    return "\n".join([*lines, "", *(_figures(*one) for one in packages.items())])


def _figures(name: str, found: Tally) -> str:
    counts = (found.killed, len(found.survived), len(found.equivalent), found.unasked)
    return FORM.format(name, *counts, found.share)

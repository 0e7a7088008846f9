"""What mutmut has found out, and how it is told."""

import json
import os
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

EQUIVALENT = Path(__file__).with_name("equivalent.txt")
SURVIVED = (0, 5, 33)
"""Its tests passed, or none was collected, or none reaches it. Any other end is a kill: tests that
failed, that could not be imported, a time limit, a signal."""


@dataclass
class Tally:
    """What became of one module's mutants."""

    killed: int = 0
    unasked: int = 0
    equivalent: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)

    @property
    def share(self) -> str:
        """Killed, of those that were asked and are not equivalent."""
        asked = self.killed + len(self.survived)
        return f"{self.killed / asked:.0%}" if asked else "-"


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


def tally(work: Path, module: str, equivalent: Mapping[str, str]) -> Tally:
    found = Tally()
    for mutant, code in load(work, module).get("exit_code_by_key", {}).items():
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


def report(folders: Mapping[str, Path]) -> str:
    """Figures by module, and the survivors."""
    equivalent = equivalents()
    tallies = {module: tally(work, module, equivalent) for module, work in folders.items()}
    form = "{:44} {:>6} {:>8} {:>10} {:>7} {:>6}"
    lines = ["", *(change for found in tallies.values() for change in found.survived), ""]
    lines.append(form.format("module", "killed", "survived", "equivalent", "unasked", "share"))
    for module, found in tallies.items():
        figures = (found.killed, len(found.survived), len(found.equivalent), found.unasked)
        lines.append(form.format(module, *figures, found.share))
    return "\n".join(lines)

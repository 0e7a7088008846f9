"""Lines of a report: what was measured, what was expected, and whether that holds."""

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """One result. `holds` is None for a figure that nothing is decided by."""

    what: str
    measured: str
    expected: str = ""
    ratio: float | None = None
    """Measured over expected."""
    holds: bool | None = None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}"
        verdict = {None: "", True: "yes", False: "NO"}[self.holds]
        return f"| {self.what} | {self.measured} | {self.expected} | {ratio} | {verdict} |"


HEAD = "| what | measured | expected | ratio | holds |\n|---|---|---|---|---|"
Part = Callable[[Any], Iterable[Line]]


def lines_of(parts: Iterable[Part], sizes: Any, until: float) -> Iterator[Line]:
    """Yield the lines of each part. A part that fails is a line that does not hold, and the next
    part begins. After `until`, on the clock time.monotonic, none begins."""
    for part in parts:
        if time.monotonic() > until:
            yield Line(part.__name__, "not run: no time left")
            continue
        began = time.monotonic()
        try:
            yield from part(sizes)
        except Exception as error:
            traceback.print_exc()
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            yield Line(part.__name__, reason.replace("|", "/"), "no error", holds=False)
        print(f"{part.__name__}: {time.monotonic() - began:.1f} s", file=sys.stderr)


def within(what: str, measured: float, most: float, unit: str, *, decides: bool = True) -> Line:
    """Return the line of a number that may be at most `most`."""
    holds = measured <= most if decides else None
    return Line(what, f"{measured:.3g} {unit}", f"≤ {most:.3g} {unit}", measured / most, holds)

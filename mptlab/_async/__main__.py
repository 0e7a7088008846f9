"""`python -m mptlab._async` makes the modules of the client without asyncio out of those here: the
same text, in which nothing is awaited. What ruff finds to mend in that, it mends."""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
MODULES = ("administration", "api", "connection", "events", "experiments", "sweeps")

WORDS = {
    r"\basync_content\((\w+)\)": r"\1",  # what is sent: the file itself
    r"\bawait asyncio\.to_thread\(([\w.()]+), ": r"\1(",
    r"\bAwaitable\[([\w.]+)\]": r"\1",
    r"\bmptlab\._async\.": "mptlab.",
    r"\bimport asyncio\b": "import time",
    r"\basyncio\.sleep\b": "time.sleep",
    r"\b(?:async|await) ": "",
    r"\bAsync(?=[A-Z])": "",
    r"\bStopAsync": "Stop",
    r"\b__a(?=enter__|exit__)": "__",
    r"\ba(?=close\(|read\(|iter_sse\(|next\()": "",
    r"_async\b": "",
}

MENDED = "F401,I001,C416,UP028"
"""Imports for nothing and their order; loops that only hand on what they go over."""


def made(module: str) -> str:
    """The text of a module of the client without asyncio."""
    text = (HERE / f"{module}.py").read_text()
    for asynchronous, other in WORDS.items():
        text = re.sub(asynchronous, other, text)
    heading = f"# Made from mptlab/_async/{module}.py by `make client`.\n"
    file = str(HERE.parent / f"{module}.py")
    mended = _ruff("check", file, heading + text, "--fix", "--unsafe-fixes", f"--select={MENDED}")
    return _ruff("format", file, mended)


def _ruff(command: str, file: str, text: str, *options: str) -> str:
    arguments = ["ruff", command, "--quiet", *options, "--stdin-filename", file, "-"]
    done = subprocess.run(
        [sys.executable, "-m", *arguments], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout


def main() -> None:
    for module in MODULES:
        (HERE.parent / f"{module}.py").write_text(made(module))


if __name__ == "__main__":
    main()

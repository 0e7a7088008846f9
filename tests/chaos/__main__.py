"""`python -m tests.chaos [--short] [PART ...]`: all parts of `make chaos`, or some of them.

The last lines say of each part whether it ran, with its counts. A part that cannot run on this
machine says why. The exit status is 0 only if every part ran and found nothing.
"""

import argparse
import os
import re
import subprocess
import sys
import time

from tests.chaos.aftermath import say

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
PARTS: dict[str, tuple[str, ...]] = {
    "queue": (*PYTEST, "tests/chaos/test_queue_machine.py", "-m", "slow", "--timeout", "7200"),
    "failpoints": (
        *PYTEST,
        "tests/chaos/test_failpoints.py",
        "tests/chaos/test_long_run.py",
        *("-m", "slow or not slow"),
    ),
    "containers": (*PYTEST, "tests/deployment/test_containers.py", "-m", "containers"),
    "mounts": (*PYTEST, "tests/chaos", "-m", "mounts"),
    "fairness": ("-m", "tests.chaos.fairness"),
    "storm": ("-m", "tests.chaos.storm"),
}
SHORT = {"fairness": ("50",), "storm": ("--short",)}
RUNS = {
    "MPT_CHAOS_SQLITE_RUNS": "1000",
    "MPT_CHAOS_POSTGRESQL_RUNS": "150",
    "MPT_CHAOS_POINTS": "1000000",
}
SHORT_RUNS = {"MPT_CHAOS_SQLITE_RUNS": "50", "MPT_CHAOS_POSTGRESQL_RUNS": "15"}
REASON = re.compile(r"(?:Skipped|did not run): (.+?)(?:'\)|\"\))?$")
"""Reason of a skipped test or of a part of the storm, to the end of its line."""


def run(name: str, arguments: tuple[str, ...], environment: dict[str, str]) -> tuple[bool, str]:
    """Run a part. Return whether all of it ran and found nothing, and a line about it."""
    began = time.monotonic()
    reasons: dict[str, None] = {}
    last = ""
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip(" =\n") or last
            if (reason := REASON.search(line.rstrip())) is not None:
                reasons[reason[1]] = None
    took = f"{(time.monotonic() - began) / 60:.1f} minutes"
    if reasons:
        return False, f"{name}: DID NOT RUN: {'; '.join(reasons)} ({last})"
    if process.returncode:
        return False, f"{name}: FAILED with {process.returncode} after {took}: {last}"
    if not last or "skipped" in last:  # as pytest does for a whole module, also if it must not
        return False, f"{name}: DID NOT RUN: {last or 'it printed nothing'}"
    return True, f"{name}: ran {took}: {last}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("parts", metavar="PART", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--short", action="store_true", help="in minutes, to try a change")
    options = parser.parse_args()
    if unknown := {*options.parts} - {*PARTS}:
        parser.error(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    runs = SHORT_RUNS if options.short else RUNS
    environment = {**os.environ, **runs, "MPT_TEST_REQUIRE_ALL": "1"}  # a skip is a failure
    outcomes = []
    for name in options.parts or PARTS:
        say(name)
        more = SHORT.get(name, ()) if options.short else ()
        outcomes.append(run(name, (*PARTS[name], *more), environment))
    for _, line in outcomes:
        print(line)
    return 0 if all(is_clean for is_clean, _ in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

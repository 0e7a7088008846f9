"""`python -m tests.fuzz.contract`: schemathesis sends valid and invalid requests according to the
OpenAPI document, as each role, with its checks and along the links between operations. Some
requests are made costly (costly_hooks.py). The last line is a summary; the exit status is 1 where
something was found."""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from service.operations.prepare import prepare
from service.settings import Settings
from tests.fuzz.campaign import ROLES, target

PROGRAM = str(Path(sysconfig.get_path("scripts"), "schemathesis"))
ROOT = Path(__file__).parents[2]
HOOKS = "tests.fuzz.costly_hooks"
EXCLUDED = {
    "positive_data_acceptance": "what fits the schema may still be refused: a spec by its limits, "
    "an object that is not there, a cursor of no page",
}
"""Checks that do not hold by design, and why."""
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
"""
"""The default, and 413: costly requests have large bodies."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--role", choices=[*ROLES], action="append")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mpt-fuzz-"))
    settings = Settings(store=folder / "store", database_url=None)
    prepare(settings)
    (folder / "schemathesis.toml").write_text(CONFIG)
    failed = []
    roles = arguments.role or list(ROLES)
    with target(settings, folder / "log") as aim:
        for role in roles:
            print(f"as {role}", flush=True)
            done = subprocess.run(
                [PROGRAM, "run", f"http://127.0.0.1:{aim.port}/openapi.json",
                 "--checks", "all", "--exclude-checks", ",".join(EXCLUDED),
                 "--phases", "examples,coverage,fuzzing,stateful",
                 "--header", f"Authorization: Bearer {aim.keys[role]}",
                 "--max-examples", str(arguments.examples), "--seed", str(arguments.seed),
                 "--suppress-health-check", "all", "--warnings", "off", "--no-color"],
                cwd=folder,
                env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            failed += [role] if done.returncode else []
    if not failed:
        shutil.rmtree(folder)
    print(f"{'FAILED' if failed else 'ok'}: {len(roles)} roles, "
          f"{len(failed)} of them found defects {failed or ''}")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.fuzz`: schemathesis sends valid and invalid requests according to the OpenAPI
document to a real API process, as each role, and along the links between operations.

Some requests get many parameters, or a body that is deep, large or wrong in many places: they are
answered within seconds, and their refusals are short. The memory of the process does not grow. The
last line is a summary; the exit status is 1 if something was found.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import schemathesis

from service.accounts import accounts
from service.db.engine import Database
from service.operations.prepare import prepare
from service.settings import Settings
from service.vocabulary import ROLE_SCOPES, Role
from tests.support.processes import Lab

PROGRAM = str(Path(sysconfig.get_path("scripts"), "schemathesis"))
ROOT = Path(__file__).parents[1]
EXCLUDED = "positive_data_acceptance"
"""A check that does not hold by design: what fits the schema may still be refused, such as a spec
by its limits, or an object that does not exist."""
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 428, 429, "5xx"]
"""
"""The default, and 413: costly requests have large bodies."""
ANSWER_S = 30
UNLIMITED = {"MPT_RATE_PER_USER": "1000000000", "MPT_MAX_UPLOAD_BYTES": "8000000"}
GROWTH_BYTES = 256 * 2**20
"""Accepted growth of the process after the requests of the first role."""
MAX_REFUSAL_BYTES = 256 * 1024
COSTLY_SHARE = 0.03
WRONG_ITEMS = [None] * 20_000
"""Wrong in each place, for any field that is a list."""
DEEP: list[Any] = []
for _ in range(60):  # more are refused before the body is validated
    DEEP = [DEEP]
BODIES = (DEEP, WRONG_ITEMS, {f"a{i}": 1 for i in range(20_000)}, {"name": "a" * 500_000})

chance = random.Random(0)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    if chance.random() > COSTLY_SHARE:
        return
    if case.media_type != "application/json":
        case.query = {**(case.query or {}), **{f"a{i}": "1" for i in range(300)}}
    elif isinstance(case.body, dict) and chance.random() < 0.5:
        case.body = dict.fromkeys(case.body, WRONG_ITEMS)
    else:
        case.body = chance.choice(BODIES)


@schemathesis.check
def refusals_are_short(ctx: Any, response: Any, case: Any) -> None:
    assert response.status_code != 422 or len(response.content) <= MAX_REFUSAL_BYTES


@contextmanager
def target(settings: Settings, log: Path) -> Iterator[tuple[Lab, psutil.Process, dict[Role, str]]]:
    """A lab whose API process runs, and a key for each role."""
    lab, keys = Lab(settings, log), {}
    with closing(Database(settings.url)) as database, database.transaction() as session:
        for role in Role:
            user = accounts.add(session, f"a-{role}", role)
            assert user is not None
            scopes = ROLE_SCOPES[role]
            _, keys[role] = accounts.add_key(session, user, name=None, scopes=scopes, lasts_s=None)
    process = lab.start("api", "api", "--port", str(lab.port), **UNLIMITED)
    try:
        lab.client()  # once it is ready
        yield lab, psutil.Process(process.pid), keys
    finally:
        lab.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("--role", choices=[*Role], action="append")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mpt-fuzz-"))
    settings = Settings(store=folder / "store", database_url=None)
    prepare(settings)
    (folder / "schemathesis.toml").write_text(CONFIG)
    roles: list[Role] = arguments.role or list(Role)
    defects, sizes = [], []
    with target(settings, folder / "log") as (lab, process, keys):
        for role in roles:
            print(f"as {role}", flush=True)
            done = subprocess.run(
                [PROGRAM, "run", f"http://127.0.0.1:{lab.port}/openapi.json",
                 "--checks", "all", "--exclude-checks", EXCLUDED, "--phases", arguments.phases,
                 "--header", f"Authorization: Bearer {keys[role]}",
                 "--request-timeout", str(ANSWER_S),
                 "--max-examples", str(arguments.examples), "--seed", str(arguments.seed),
                 "--suppress-health-check", "all", "--warnings", "off", "--no-color"],
                cwd=folder,
                env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz", "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            defects += [f"as {role}"] if done.returncode else []
            sizes.append(process.memory_info().rss)
    if sizes[-1] - sizes[0] > GROWTH_BYTES:
        defects.append(f"the process grew by {(sizes[-1] - sizes[0]) / 2**20:.0f} MiB")
    if defects:
        print(f"the log of the service: {folder / 'log'}")
    else:
        shutil.rmtree(folder)
    print(f"{'FAILED' if defects else 'ok'}: {len(roles)} roles {defects or ''}")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())

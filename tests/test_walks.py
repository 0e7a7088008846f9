"""The walks of docs/architecture.md are the calls that are made. They are listed for readers, so
this is the one test of calls."""

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from fastapi import Response
from sqlalchemy import Row, update

from service.accounts.models import ApiKey
from service.accounts.users import Caller
from service.curves import routes as curve_routes
from service.curves.formats import Answer, Format
from service.curves.routes import Asked
from service.db.engine import Database
from service.experiments import routes
from service.experiments.models import Experiment
from service.experiments.schemas import Submission
from service.queue import lease
from service.queue.snapshot import QueueSnapshots
from service.records.curves import Curve
from service.records.recording import Batch
from service.settings import Settings
from service.submission import submit
from service.submission.idempotency import IdempotentRequest
from service.vocabulary import Role, Scope, Status
from tests.support.attempts import claimed, submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until
from tests.support.records import point
from tests.support.stored import LOCAL
from tests.support.stub import started
from worker.controller import Controller
from worker.slot import Slot
from worker.supervisor import Supervision

ROOT = Path(__file__).resolve().parents[1]
WALKS = re.split(r"^### ", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE)
STEP = re.compile(r"^\d+\. `(\S+)` `(\S+)`", re.MULTILINE)
MAX_LINES = 60


def walk(title: str) -> list[tuple[str, str]]:
    """The files and functions of a section of the page."""
    (section,) = (text for text in WALKS if text.startswith(f"{title}\n"))
    return STEP.findall(section.partition("\n## ")[0])


BEGIN = ("Slot.claim", "submit", "submitted")
"""Functions that begin a walk, before there is a session."""
LEFT_OUT = ("service/db/", "service/accounts/")
"""The database itself, and authentication."""


def calls(act: Callable[[], object]) -> list[tuple[str, str]]:
    """The calls of functions that take a session, and of those that begin a walk."""
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code, file = frame.f_code, Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT) and ".venv" not in file.parts:
            name = str(file.relative_to(ROOT))
            takes_session = "session" in code.co_varnames[: code.co_argcount]
            if name.startswith(("service/", "worker/")) and not name.startswith(LEFT_OUT):
                call = name, code.co_qualname
                is_resumed = found[-1:] == [call]  # a generator, which is closed
                if (takes_session or code.co_qualname in BEGIN) and not is_resumed:
                    found.append(call)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


def test_a_claim(database: Database, settings: Settings) -> None:
    slot = Slot(database, settings, "w")
    submitted(database)
    made = calls(slot.claim)
    assert made == walk("A claim")
    assert len(made) - 1 <= 8
    assert len({file for file, _ in made}) <= 4


def test_the_end_of_an_attempt(database: Database) -> None:
    claim = claimed(database)
    with database.transaction() as session:
        assert calls(lambda: lease.finish(session, claim, Status.SUCCEEDED)) == walk(
            "The end of an attempt"
        )


def test_a_look_of_the_controller(database: Database, settings: Settings) -> None:
    claimed(database)
    with database.transaction() as session:
        session.execute(update(Experiment).values(lease_expires_at=1.0))
    controller = Controller(database, settings.model_copy(update={"lease_s": 0.0}), None)
    assert calls(controller.tick) == walk("A look of the controller")


def test_a_submission(database: Database, settings: Settings) -> None:
    with database.transaction() as session:
        session.add(ApiKey(id=LOCAL.key_id, user_id=1, secret_sha256=b"", scopes=[]))
    submission = Submission.model_validate({"spec": ppca_spec()})
    key = IdempotentRequest("k", "POST /v1/experiments", b"{}")
    carried_out = partial(submit.submitted, database, settings, LOCAL, key=key)
    answer = asyncio.run(routes._answer(database, QueueSnapshots(), LOCAL))
    made = calls(lambda: routes.submit(submission, carried_out, answer, Response()))
    stored = made[: made.index(("service/experiments/query_routes.py", "to_response"))]
    assert stored == walk("A submission")
    assert len({*stored}) <= 25
    assert len({file for file, _ in stored}) <= 12


VALUE = 0.123456789


def holds_value(thing: object) -> bool:
    """Return whether the value is in a line, a block, a number, or anything that contains them."""
    match thing:
        case bytes() | memoryview():
            forms = str(VALUE).encode(), np.float64(VALUE).tobytes()
            return any(form in bytes(thing) for form in forms)
        case float():
            return thing == VALUE
        case np.ndarray():
            return thing.dtype == np.float64 and VALUE in thing
        case dict():
            return any(map(holds_value, thing.values()))
        case list() | Row():
            return any(map(holds_value, thing))
        case Batch() | Curve() | Answer():
            return any(map(holds_value, vars(thing).values()))
        case Response():
            return holds_value(thing.body)
    return False


def passed_by(act: Callable[[], object]) -> list[tuple[str, str]]:
    """The functions of an act with the value among their arguments or in their result, once each.
    Those of the database itself are left out."""
    found: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, result: object) -> None:
        code, file = frame.f_code, Path(frame.f_code.co_filename)
        if not file.is_relative_to(ROOT) or ".venv" in file.parts or "<" in code.co_name:
            return
        name = str(file.relative_to(ROOT))
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [frame.f_locals.get(name) for name in names if name != "self"]
        if name.startswith(("service/", "worker/")) and not name.startswith("service/db/"):
            if any(map(holds_value, given if event == "call" else [result])):
                found.setdefault((name, code.co_qualname))

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return [*found]


def test_a_point(database: Database, settings: Settings) -> None:
    claim = claimed(database)
    lines = [
        json.dumps({**point(1), "value": VALUE}),
        json.dumps({"seq": None, "record": "end", "count": 1}),
    ]
    runner = started("printf", "%s\\n", *lines)
    supervision = Supervision(database, settings, claim, runner)
    wait_until(lambda: not runner.alive)
    passed = passed_by(supervision._step)
    runner.kill()
    user = Caller(1, "local", Role.ADMIN, "k", frozenset({Scope.READ}))
    asked = Asked(Format.JSON)
    passed += passed_by(
        lambda: curve_routes._answer(database, claim.experiment_id, None, user, {}, asked)
    )
    passed = [step for step in passed if not step[0].startswith("service/web/")]
    assert passed == walk("A point, from the runner's line to the JSON of its curve")
    assert len(passed) <= 20
    assert len({file for file, _ in passed}) <= 8


@pytest.mark.parametrize(
    "title",
    [
        "A submission",
        "A claim",
        "The end of an attempt",
        "A look of the controller",
        "A point, from the runner's line to the JSON of its curve",
    ],
)
def test_functions_on_the_way_are_short(title: str) -> None:
    for file, name in walk(title):
        module = import_module(file.removesuffix(".py").replace("/", "."))
        lines, _ = inspect.getsourcelines(attrgetter(name)(module))
        assert len(lines) <= MAX_LINES, f"{file} {name} has {len(lines)} lines"

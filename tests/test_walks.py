"""The walks of docs/architecture.md are the calls that are made. They are listed for readers, so
this is the one test of calls."""

import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import FrameType

import pytest
from sqlalchemy import update

from service.db.engine import Database
from service.experiments.models import Experiment, Status
from service.queue import lease
from service.settings import Settings
from tests.support.attempts import claimed, submitted
from worker.controller import Controller
from worker.slot import Slot

ROOT = Path(__file__).resolve().parents[1]
WALKS = re.split(r"^### ", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE)
STEP = re.compile(r"^\d+\. `(\S+)` `(\S+)`", re.MULTILINE)
MAX_LINES = 60


def walk(title: str) -> list[tuple[str, str]]:
    """The files and functions of a section of the page."""
    (section,) = (text for text in WALKS if text.startswith(f"{title}\n"))
    return STEP.findall(section.partition("\n## ")[0])


def calls(act: Callable[[], object]) -> list[tuple[str, str]]:
    """The calls of functions that take a session, and of methods of `Slot` that an act begins with.
    Functions of the database itself are left out."""
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code, file = frame.f_code, Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT) and ".venv" not in file.parts:
            name = str(file.relative_to(ROOT))
            takes_session = "session" in code.co_varnames[: code.co_argcount]
            if name.startswith(("service/", "worker/")) and not name.startswith("service/db/"):
                call = name, code.co_qualname
                is_resumed = found[-1:] == [call]  # a generator, which is closed
                if (takes_session or code.co_qualname == "Slot.claim") and not is_resumed:
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


@pytest.mark.parametrize("title", ["A claim", "The end of an attempt", "A look of the controller"])
def test_functions_on_the_way_are_short(title: str) -> None:
    for file, name in walk(title):
        module = import_module(file.removesuffix(".py").replace("/", "."))
        lines, _ = inspect.getsourcelines(attrgetter(name)(module))
        assert len(lines) <= MAX_LINES, f"{file} {name} has {len(lines)} lines"

"""Divided runs in one process: a coordinator and helpers that take turns at random."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from mptcore.protocol.records import Progress, Record, encode
from mptcore.run import resumable
from mptcore.runtime.checkpoint import Resumed
from mptcore.runtime.division import NotWorthwhile
from mptcore.runtime.session import Session
from mptcore.specs import ExperimentSpec

MAX_SPAN = 3


@dataclass
class Board:
    """Store that the processes of a divided run share. Claims are sometimes not answered, and
    scores are sometimes lost."""

    chance: random.Random
    losses: float = 0.1
    next: int = 0
    """The first number that nobody has claimed."""
    scores: dict[int, Tensor] = field(default_factory=dict)
    plans: dict[int, Tensor] = field(default_factory=dict)
    used: Counter[int] = field(default_factory=Counter)
    """Number of times that the scores of each batch were taken from a helper."""


@dataclass
class Seat:
    """The part of one process."""

    board: Board
    helps: bool
    mine: list[int] = field(default_factory=list)

    def claim(self, least: int) -> int | None:
        board = self.board
        self.mine = [number for number in self.mine if number >= least]
        if not self.mine:
            if board.chance.random() < board.losses:
                return None
            first = board.next
            board.next += board.chance.randint(1, MAX_SPAN)
            self.mine = [number for number in range(first, board.next) if number >= least]
        return self.mine[0] if self.mine else None

    def found(self, number: int) -> Tensor | None:
        scores = self.board.scores.pop(number, None)
        self.board.used[number] += scores is not None
        return scores

    def put(self, number: int, scores: Tensor) -> None:
        assert self.helps
        if self.board.chance.random() >= self.board.losses:
            self.board.scores[number] = scores

    def plan(self, number: int, compute: Callable[[], Tensor]) -> Tensor | None:
        if self.helps:
            return self.board.plans.get(number)
        return self.board.plans.setdefault(number, compute())


def steps(
    spec: ExperimentSpec, session: Session, found: Resumed | None = None
) -> Iterator[Record | None]:
    """Yield the records of a run, numbered by the session."""
    if found is not None:
        session.scores.values = found.scores.values
    for record in resumable(spec, session, found.training if found else None):
        if record is not None and not isinstance(record, Progress):
            session.seq += 1
        yield record


def alone(spec: ExperimentSpec, folder: Path) -> list[str]:
    """Return the lines of a run that no other process helps."""
    return _lines(steps(spec, session := Session(work_dir=folder)), session)


def divided(
    spec: ExperimentSpec,
    folder: Path,
    board: Board,
    helpers: int,
    found: Resumed | None = None,
    loss: float = 0.001,
) -> list[str]:
    """Return the lines of a run with helpers, each of which vanishes with the probability `loss` at
    each of its steps and is replaced by a new one."""
    chance, after = board.chance, 0 if found is None else found.after
    session = Session(work_dir=folder)
    session.scores.division = Seat(board, helps=False)

    def helper() -> Iterator[Record | None]:
        own = Session()
        own.scores.division = Seat(board, helps=True)
        training = found.training if found else None
        return resumable(spec, own, training)

    beside = [helper() for _ in range(helpers)]

    def taking_turns() -> Iterator[Record | None]:
        for record in steps(spec, session, found):
            yield record
            for _ in range(chance.randint(0, 3 * helpers) if beside else 0):
                i = chance.randrange(helpers)
                if chance.random() < loss:
                    beside[i] = helper()
                with suppress(NotWorthwhile):  # on a slow machine
                    next(beside[i], None)

    return _lines(taking_turns(), session, after)


def _lines(found: Iterator[Record | None], session: Session, after: int = 0) -> list[str]:
    return [
        encode(session.seq, record)
        for record in found
        if record is not None and not isinstance(record, Progress) and session.seq > after
    ]

"""Batches of an attempt that its worker and its helpers compute: claims, plans and scores.

The functions for the attempt itself must follow its fence (`lease.heartbeat`) in the same
transaction, those for a helper its own (`helping.beat`). No function commits. A claim only avoids
double work: the attempt uses each batch once, and computes missing batches itself."""

import base64
import json
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.tables.engine import among, insert_new
from service.tables.helpers import DividedRun, Help, SentBatch

MAX_TAKEN = 64
"""Maximum number of batches that an attempt reads in one transaction."""
MAX_BYTES_TAKEN = 2**23
"""Maximum bytes of these batches, unless one alone has more."""


def begin(session: Session, experiment_id: str, attempt: int, first: int) -> None:
    """Let helpers claim batches from number `first` on. A repeated call changes nothing."""
    row = {
        "experiment_id": experiment_id,
        "attempt": attempt,
        "next": first,
        "plans": [],
    }
    insert_new(session, DividedRun, [row])


def is_free(session: Session, experiment_id: str) -> bool:
    """Lock the claims of a divided run, and return False if another transaction has locked them. A
    helper that hangs in a transaction must not hold up the heartbeat of the run."""
    mine = select(DividedRun.experiment_id).where(DividedRun.experiment_id == experiment_id)
    return session.scalar(mine.with_for_update(skip_locked=True)) is not None


def publish_plans(
    session: Session, experiment_id: str, attempt: int, plans: Sequence[dict[str, Any]]
) -> None:
    """Add plans for the helpers. A repeated call changes nothing."""
    run = session.get_one(DividedRun, experiment_id)
    known = {one["number"] for one in run.plans}
    run.plans = [*run.plans, *(one for one in plans if one["number"] not in known)]


def take_scores(session: Session, experiment_id: str, attempt: int) -> list[dict[str, Any]]:
    """Return scores that helpers have sent, and delete them: the first batches, up to the limits
    above."""
    of_attempt = (SentBatch.experiment_id == experiment_id) & (SentBatch.attempt == attempt)
    sizes = session.execute(
        select(SentBatch.number, func.length(SentBatch.content))
        .where(of_attempt)
        .order_by(SentBatch.number)
        .limit(MAX_TAKEN)
    ).all()
    total = accumulate(size for _, size in sizes)
    numbers = [
        number
        for (number, _), up_to in zip(sizes, total, strict=True)
        if up_to <= MAX_BYTES_TAKEN or number == sizes[0][0]
    ]
    if not numbers:
        return []
    taken = of_attempt & SentBatch.number.in_(numbers)
    rows = session.execute(
        select(SentBatch.number, SentBatch.content).where(taken).order_by(SentBatch.number)
    ).all()
    session.execute(delete(SentBatch).where(taken))
    return [_unpacked(*row) for row in rows]


def claim_span(session: Session, experiment_id: str, attempt: int, count: int) -> int | None:
    """Claim the next `count` batches that nobody has, and return the first. None if the attempt
    does not share its work."""
    return session.scalar(
        update(DividedRun)
        .where(DividedRun.experiment_id == experiment_id, DividedRun.attempt == attempt)
        .values(next=DividedRun.next + count)
        .returning(DividedRun.next - count)
    )


def plans(session: Session, experiment_id: str, attempt: int) -> list[dict[str, Any]] | None:
    """Return the plans of an attempt, or None if it does not share its work."""
    return session.scalar(
        select(DividedRun.plans).where(
            DividedRun.experiment_id == experiment_id, DividedRun.attempt == attempt
        )
    )


def packed(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a batch as they are stored: a line with their shape, then the numbers.
    Compressing these would take several times as long."""
    shape = json.dumps(batch["shape"]).encode()
    content = shape + b"\n" + base64.b64decode(batch["data"], validate=True)
    return {"number": batch["number"], "content": content}


def _unpacked(number: int, content: bytes) -> dict[str, Any]:
    shape, numbers = content.split(b"\n", 1)
    data = base64.b64encode(numbers).decode()
    return {"number": number, "shape": json.loads(shape), "data": data}


def send_scores(
    session: Session,
    experiment_id: str,
    attempt: int,
    help_id: int,
    batches: Sequence[dict[str, Any]],
) -> None:
    """Send the scores of packed batches to the attempt. A repeated call changes nothing."""
    of = {"experiment_id": experiment_id, "attempt": attempt, "help_id": help_id}
    rows = [{**of, **one} for one in batches]
    insert_new(session, SentBatch, rows)
    if rows:
        sent = update(Help).where(Help.id == help_id).values(batches=Help.batches + len(rows))
        session.execute(sent.execution_options(synchronize_session=False))


def forget(session: Session, experiment_ids: Collection[str]) -> None:
    """Delete the claims, plans and scores of attempts that have ended."""
    for table in (DividedRun, SentBatch):
        forget = delete(table).where(among(table.experiment_id, experiment_ids))
        session.execute(forget.execution_options(synchronize_session=False))

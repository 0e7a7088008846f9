"""Random labs whose promises of latest starts are compared with the starts."""

import math
import random
from dataclasses import dataclass, field

from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Experiment
from service.fair_share import HOUR_S, FairShare
from service.queue.position import queue_positions
from service.queue.shares import standings
from service.queue.snapshot import QueueSnapshots
from service.vocabulary import Status
from tests.support.shared_lab import WITHIN_S
from tests.support.sliced_lab import SlicedLab

LOOK_S = 900.0
"""Interval of the controller's looks; the real one looks every 5 s."""
LENGTHS_S = (10.0, 200 * HOUR_S)


@dataclass
class Promised:
    """Promises of a random lab."""

    kept: int = 0
    broken: list[str] = field(default_factory=list)


def promised(database: Database, seed: int, days: float = 2.0) -> Promised:
    """Simulate a random lab. A promise ends when a user with less usage submits."""
    pick = random.Random(seed)
    fair_share = FairShare(slice_s=4 * HOUR_S, spare_slots=pick.choice([0, 1]))
    lab = SlicedLab(
        database, fair_share, cpus=pick.randint(1, 4), look_s=LOOK_S, start_s=30.0, save_s=60.0,
        seed=seed,
    )  # fmt: skip
    users = [lab.user(f"user {i}", shares=pick.randint(1, 3)) for i in range(pick.randint(3, 10))]
    latest: dict[str, float] = {}
    found = Promised()
    while lab.time < days * 24 * HOUR_S:
        owner = pick.choice(users)
        usage = _charges(lab)
        for one in [*latest]:
            if usage[owner] <= usage[lab.owners[one]] and owner != lab.owners[one]:
                del latest[one]  # it was promised only if nobody with less usage submits
        length_s = math.exp(pick.uniform(*map(math.log, LENGTHS_S)))
        lab.submit(owner, pick.choice([1, 1, 1, 2, 5]), length_s)
        for_s = pick.expovariate(1 / (pick.choice([0.2, 2, 6]) * HOUR_S))
        while for_s > 0:
            starts = len(lab.starts)
            lab.run(step_s := min(for_s, HOUR_S / 2))
            for_s -= step_s
            for at, _, one in lab.starts[starts:]:
                if (until := latest.pop(one, None)) is not None:
                    is_kept = at <= until + LOOK_S
                    found.kept += is_kept
                    if not is_kept:
                        found.broken.append(f"{one} started at {at:.0f}, not at {until:.0f}")
            for one, until in [*latest.items()]:
                if lab.time > until + LOOK_S:
                    found.broken.append(f"{one} waits at {lab.time:.0f}, not until {until:.0f}")
                    del latest[one]
            for one, until in _latest_starts(lab).items():
                latest[one] = min(until, latest.get(one, until))
    return found


def _charges(lab: SlicedLab) -> dict[int, float]:
    with lab.database.snapshot() as session:
        found = standings(session, lab.fair_share)
    return {one.owner_id: one.charged_s / one.shares for one in found}


def _latest_starts(lab: SlicedLab) -> dict[str, float]:
    """Return the promised latest starts by experiment."""
    with lab.database.snapshot() as session:
        rows = session.scalars(select(Experiment).where(Experiment.status == Status.QUEUED)).all()
        places = queue_positions(session, rows, QueueSnapshots(WITHIN_S, lab.fair_share))
    latest = {id: place.latest_start for id, place in places.items()}
    return {id: at.timestamp() - lab.began for id, at in latest.items() if at is not None}

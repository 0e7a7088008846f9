"""Simulated labs in which runs give way after their slices: random users, shares, slots and lengths
of runs, from seconds to weeks."""

import math
import random
from dataclasses import dataclass

from service.db.engine import Database
from service.fair_share import HOUR_S, FairShare
from tests.support.sliced_lab import SLICE_S, Findings, SlicedLab

WEEK_S = 168 * HOUR_S
LOOK_S = HOUR_S / 2
"""Longest interval of the controller's looks; the real one looks every 5 s."""
START_S, SAVE_S = 60.0, 600.0
"""Time that a run takes to load, and longest time until it can save."""
LENGTHS_S = (10.0, 4 * WEEK_S)
MANY_SLICES = 30
"""Share of a week from which a deviation is told relative to it."""


@dataclass
class Week:
    """A week of a lab. Times are in hours."""

    seed: int
    users: int
    slots: int
    longest_due_h: float
    """Longest time that a user without a run waited although enough slots were held by users with
    more usage for their shares."""
    longest_idle_h: float
    """Longest time that a user with waiting experiments was without a run."""
    off: float
    """Largest deviation of the usage from the share, relative to it, of users who always wait and
    whose share is MANY_SLICES or more."""
    off_slices: float
    """The same of users with a smaller share, in slices."""
    repeated: float
    """Part of the slot time for the start of runs that had given way."""
    findings: Findings


def week(
    database: Database,
    seed: int,
    slice_h: float = 4.0,
    slots: int | None = None,
    users: int | None = None,
) -> Week:
    """Simulate a week of a random lab, or of one with these numbers of slots and users. Half of the
    users have long runs waiting all the time, the others submit runs now and then."""
    pick = random.Random(seed)
    slots, number = slots or pick.randint(1, 8), users or pick.randint(5, 40)
    fair_share = FairShare(slice_s=slice_h * HOUR_S, spare_slots=pick.choice([0, 1]))
    lab = SlicedLab(
        database, fair_share, cpus=slots, look_s=LOOK_S, start_s=START_S, save_s=SAVE_S, seed=seed
    )
    shares = {lab.user(f"user {i}", shares=(n := pick.randint(1, 4))): n for i in range(number)}
    everyone = [*shares]
    always, others = everyone[: number // 2], everyone[number // 2 :]
    for user in always:
        lab.submit(user, slots, pick.uniform(1, 4) * WEEK_S)
    while lab.time < WEEK_S:
        lab.run(min(pick.expovariate(1 / (4 * HOUR_S)), WEEK_S - lab.time))
        length_s = math.exp(pick.uniform(*map(math.log, LENGTHS_S)))
        lab.submit(pick.choice(others), pick.randint(1, 3), length_s)
    used = lab.used_s()
    of_always = sum(used.get(user, 0.0) for user in always)
    all_shares = sum(shares[user] for user in always)
    due = {user: of_always * shares[user] / all_shares for user in always}
    off_s = {user: abs(used.get(user, 0.0) - due[user]) for user in always}
    many = {user for user in always if due[user] >= MANY_SLICES * SLICE_S}
    findings = lab.findings
    return Week(
        seed=seed,
        users=number,
        slots=slots,
        longest_due_h=findings.longest_due_s / HOUR_S,
        longest_idle_h=findings.longest_idle_s / HOUR_S,
        off=max((off_s[user] / due[user] for user in many), default=0.0),
        off_slices=max((off_s[user] / SLICE_S for user in {*always} - many), default=0.0),
        repeated=findings.repeated_s / (slots * WEEK_S),
        findings=findings,
    )

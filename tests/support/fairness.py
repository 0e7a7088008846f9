"""Check that nobody starves: random users, shares, limits, devices and lengths, and a user who
floods."""

import random

from service.db.engine import Database
from service.fair_share import FairShare
from service.queue.shares import Standing, standings
from tests.support.shared_lab import SharedLab

LONGEST_S = 200.0


def starved(database: Database, seed: int) -> list[str]:
    """Return one line for each experiment that waited longer than the shares allow, or
    forever.

    A user with one experiment waits at most until each other user has had as much for its shares,
    which each may exceed by one run, and until a run that began before has ended.
    """
    pick = random.Random(seed)
    half_life_s, gpu_weight = pick.choice([500.0, 5000.0]), pick.uniform(1, 10)
    fair_share = FairShare(half_life_s=half_life_s, gpu_weight=gpu_weight, spare_slots=0)
    lab = SharedLab(database, fair_share, cpus=pick.randint(1, 2), gpus=1)
    users = [
        lab.user(f"user {seed} {i}", shares=pick.randint(1, 4)) for i in range(pick.randint(2, 4))
    ]
    flooder = lab.user(f"flooder {seed}", max_running=pick.choice([None, 2]))
    for device in ("cpu", "cuda", "auto"):
        lab.submit(flooder, 15, pick.uniform(100, LONGEST_S), device, priority=100)
    allowed: dict[str, float] = {}
    for _ in range(10):
        lab.run(pick.uniform(1, LONGEST_S))
        waiting = {lab.owners[one] for one in lab.waiting()}
        user = pick.choice([one for one in users if one not in waiting] or [flooder])
        with database.snapshot() as session:
            wait_s = _longest_wait_s(user, standings(session, fair_share))
        device, length_s = pick.choice(["cpu", "cuda", "auto"]), pick.uniform(1, LONGEST_S)
        (one,) = lab.submit(user, 1, length_s, device, pick.randint(-9, 9))
        if user != flooder:
            allowed[one] = lab.time + wait_s
    lab.run()
    started = {one: at for at, _, one in lab.starts}
    never = [f"seed {seed}: {one} never ran" for one in lab.owners if one not in started]
    return never + [
        f"seed {seed}: {one} started at {started[one]:.0f} s, not by {by:.0f} s"
        for one, by in allowed.items()
        if one in started and started[one] > by
    ]


def _longest_wait_s(user: int, everyone: list[Standing]) -> float:
    mine = next(one for one in everyone if one.owner_id == user)
    others = [one for one in everyone if one.owner_id != user]
    lacking = (
        max(0.0, mine.charged_s / mine.shares * one.shares - one.charged_s) for one in others
    )
    return sum(lacking) + (len(others) + 1) * LONGEST_S

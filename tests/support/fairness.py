"""Check that nobody starves: random users, projects, shares, limits, devices and lengths, and a
user who floods."""

import random

from service.accounts.models import OWN
from service.db.engine import Database
from service.fair_share import FairShare
from service.queue.ledger import Member
from service.queue.shares import Standing, standings
from tests.support.shared_lab import SharedLab

LONGEST_S = 200.0
MAX_PROJECTS, MAX_MEMBERS = 3, 10


def starved(database: Database, seed: int, with_projects: bool = False) -> list[str]:
    """Return one line for each experiment that waited longer than the shares allow, or
    forever.

    A user with one experiment waits at most until each other member of the project, and then each
    other account, has had as much for its shares, which each may exceed by one run, and until a run
    that began before has ended.
    """
    pick = random.Random(seed)
    half_life_s, gpu_weight = pick.choice([500.0, 5000.0]), pick.uniform(1, 10)
    fair_share = FairShare(half_life_s=half_life_s, gpu_weight=gpu_weight, spare_slots=0)
    lab = SharedLab(database, fair_share, cpus=pick.randint(1, 2), gpus=1)
    users = [
        lab.user(f"user {seed} {i}", shares=pick.randint(1, 4))
        for i in range(pick.randint(2, MAX_MEMBERS if with_projects else 4))
    ]
    flooder = lab.user(f"flooder {seed}", max_running=pick.choice([None, 2]))
    accounts = {user: [OWN] for user in (*users, flooder)}
    for i in range(pick.randint(1, MAX_PROJECTS) if with_projects else 0):
        members = pick.sample([*accounts], pick.randint(1, min(MAX_MEMBERS, len(accounts))))
        project = lab.project(f"project {seed} {i}", members, shares=pick.randint(1, 4))
        for user in members:
            accounts[user].append(project)
    for project in accounts[flooder]:
        for device in ("cpu", "cuda", "auto"):
            length_s = pick.uniform(100, LONGEST_S)
            lab.submit(flooder, 15, length_s, device, priority=100, project=project)
    allowed: dict[str, float] = {}
    for _ in range(10):
        lab.run(pick.uniform(1, LONGEST_S))
        waiting = {lab.owners[one] for one in lab.waiting()}
        user = pick.choice([one for one in users if one not in waiting] or [flooder])
        project = pick.choice(accounts[user]) if with_projects else OWN
        with database.snapshot() as session:
            everyone = standings(session, fair_share)
            wait_s = _longest_wait_s(Member(user, project), everyone, gpu_weight)
        device, length_s = pick.choice(["cpu", "cuda", "auto"]), pick.uniform(1, LONGEST_S)
        (one,) = lab.submit(user, 1, length_s, device, pick.randint(-9, 9), project)
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


def _longest_wait_s(member: Member, everyone: list[Standing], gpu_weight: float) -> float:
    """Return how long the next run of a member may have to wait, in slot time."""
    mine = next(one for one in everyone if one.member == member)
    colleagues = [
        one for one in everyone if one.member.account == member.account and one is not mine
    ]
    of_colleagues_s = sum(
        max(0.0, mine.charged_s / mine.shares * one.shares - one.charged_s) for one in colleagues
    )
    used_s = mine.account.charged_s + of_colleagues_s + len(colleagues) * LONGEST_S * gpu_weight
    others = {one.member.account: one.account for one in everyone}
    del others[member.account]
    of_others_s = sum(
        max(0.0, used_s / mine.account.shares * one.shares - one.charged_s)
        for one in others.values()
    )
    return of_colleagues_s + of_others_s + (len(colleagues) + len(others) + 1) * LONGEST_S

"""Fair share on two levels: accounts, which are projects or users' own, and their members."""

import random
from collections import defaultdict

import pytest

from service.db.engine import Database
from service.experiments.models import Queue, Usage
from service.fair_share import FairShare
from service.queue import claims
from service.queue.ledger import Member
from service.queue.rooms import places
from service.vocabulary import Status
from tests.support.project_labs import far_from_their_shares
from tests.support.shared_lab import WITHIN_S, SharedLab
from tests.support.stored import change

JOB_S = 100.0
CLOSE = 1e-6


def next_one(lab: SharedLab) -> str:
    """Return the experiment that a worker would start."""
    with lab.database.snapshot() as session:
        chosen = claims.choose(
            session, "cpu0", Queue.CPU, lab.fair_share, places(session, WITHIN_S)
        )
        assert chosen is not None
        return chosen[1]


def set_usage(lab: SharedLab, usage: dict[Member, float]) -> None:
    with lab.database.transaction() as session:
        for member, used_s in usage.items():
            numbers = {"settled_s": used_s, "charged_s": used_s, "as_of": lab.clock.now}
            session.add(Usage(**member._asdict(), **numbers))


@pytest.mark.parametrize("few", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_the_next_experiment_is_the_first_of_the_first_member_of_the_first_account(
    either: Database, monkeypatch: pytest.MonkeyPatch, seed: int, few: int
) -> None:
    """As Slurm's Fair Tree: computed here from the top down, one level after the other."""
    monkeypatch.setattr(claims, "FEW", few)
    pick = random.Random(seed)
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=1)
    shares = {lab.user(f"user {of} {i}", shares=of): of for of in (1, 2, 4) for i in range(3)}
    project_shares = {}
    members = [Member(id) for id in shares]
    for i in range(4):
        some = pick.sample([*shares], pick.randint(1, 5))
        of = pick.choice([1, 3, 5])
        project = lab.project(f"project {i}", some, shares=of)
        project_shares[project] = of
        members += [Member(id, project) for id in some]
    usage = {one: pick.uniform(1, 1000) for one in members if pick.random() < 0.8}
    set_usage(lab, usage)
    waiting = defaultdict[Member, list[tuple[int, str]]](list)
    for member in pick.sample(members, len(members)):
        for _ in range(pick.randint(0, 2)):
            priority = pick.choice([0, 7])
            (id,) = lab.submit(member.owner_id, 1, JOB_S, "cpu", priority, member.project_id)
            waiting[member].append((-priority, id))

    def of_account(account: tuple[int, int]) -> float:
        used_s = sum(used_s for one, used_s in usage.items() if one.account == account)
        owner_id, project = account
        return used_s / (project_shares[project] if project else shares[owner_id])

    while waiting:
        accounts = {member.account for member in waiting}
        lowest = min(map(of_account, accounts))
        tied = [one for one in waiting if of_account(one.account) <= lowest + CLOSE]
        in_it = {one: usage.get(one, 0.0) / shares[one.owner_id] for one in tied}
        least = min(in_it.values())
        firsts = {one: min(waiting[one]) for one in tied if in_it[one] <= least + CLOSE}
        expected = min(firsts.values(), key=lambda first: first[1])
        assert next_one(lab) == expected[1]
        member = next(one for one, first in firsts.items() if first == expected)
        waiting[member].remove(expected)
        if not waiting[member]:
            del waiting[member]
        change(either, expected[1], status=Status.CANCELLED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_accounts_and_members_get_their_shares(seed: int, database: Database) -> None:
    """tests.chaos.fairness simulates a thousand of these labs."""
    assert far_from_their_shares(database, seed) == []

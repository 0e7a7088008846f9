"""Fair share on two levels: accounts, which are projects or users' own, and their members."""

import random
from collections import Counter, defaultdict

import pytest
from sqlalchemy import select

from service.accounts.models import OWN
from service.db.engine import Database
from service.experiments.models import Experiment, Queue, Usage
from service.fair_share import HOUR_S, FairShare
from service.queue import claims, shares, turns
from service.queue.ledger import Member
from service.queue.position import queue_positions
from service.queue.rooms import places
from service.queue.snapshot import QueueSnapshots
from service.vocabulary import Status
from service.workers.models import Worker
from tests.support.project_labs import far_from_their_shares
from tests.support.shared_lab import WITHIN_S, SharedLab
from tests.support.sliced_lab import SlicedLab
from tests.support.stored import change

JOB_S, LONG_S = 100.0, 1000 * HOUR_S
CLOSE = 1e-6


def chosen(lab: SharedLab, queue: Queue = Queue.CPU) -> str | None:
    """Return the experiment that the first worker would start."""
    with lab.database.snapshot() as session:
        choice = claims.choose(
            session, f"{queue}0", queue, lab.fair_share, places(session, WITHIN_S)
        )
        return choice and choice[1]


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
    """Slurm calls it Fair Tree. It is computed here from the top down, level by level."""
    monkeypatch.setattr(claims, "FEW", few)
    pick = random.Random(seed)
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=1)
    of_users = {lab.user(f"user {of} {i}", shares=of): of for of in (1, 2, 4) for i in range(3)}
    project_shares = {}
    members = [Member(id) for id in of_users]
    for i in range(4):
        some = pick.sample([*of_users], pick.randint(1, 5))
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
        return used_s / (project_shares[project] if project else of_users[owner_id])

    while waiting:
        accounts = {member.account for member in waiting}
        lowest = min(map(of_account, accounts))
        tied = [one for one in waiting if of_account(one.account) <= lowest + CLOSE]
        in_it = {one: usage.get(one, 0.0) / of_users[one.owner_id] for one in tied}
        least = min(in_it.values())
        firsts = {one: min(waiting[one]) for one in tied if in_it[one] <= least + CLOSE}
        expected = min(firsts.values(), key=lambda first: first[1])
        assert chosen(lab) == expected[1]
        member = next(one for one, first in firsts.items() if first == expected)
        waiting[member].remove(expected)
        if not waiting[member]:
            del waiting[member]
        change(either, expected[1], status=Status.CANCELLED)


@pytest.mark.parametrize("seed", range(6))
def test_positions_are_the_order_of_starts_until_a_run_ends(seed: int, database: Database) -> None:
    """Idle workers start all that may start."""
    pick = random.Random(seed)
    lab = SharedLab(database, FairShare(spare_slots=0), cpus=40)
    users = [lab.user(f"user {of} {i}", shares=of) for of in (1, 2) for i in range(2)]
    members = [Member(user) for user in users]
    for i in range(2):
        some = pick.sample(users, pick.randint(1, 4))
        project = lab.project(f"project {i}", some, shares=pick.choice([1, 3]))
        members += [Member(user, project) for user in some]
    set_usage(lab, {member: pick.uniform(1, 400) for member in members})
    waiting = []
    for member in members:
        for _ in range(pick.randint(0, 4)):
            waiting += lab.submit(member.owner_id, 1, JOB_S, project=member.project_id)
    with database.snapshot() as session:
        rows = session.scalars(select(Experiment).where(Experiment.id.in_(waiting))).all()
        found = queue_positions(session, rows, QueueSnapshots(WITHIN_S, lab.fair_share))
    lab.run(0.0)
    assert [found[id].position for _, _, id in lab.starts] == [*range(len(waiting))]


class Sliced:
    """A sliced lab with one worker and a project of two members, of whom the first runs."""

    def __init__(self, database: Database, cpus: int = 1, **limits: int):
        self.lab = SlicedLab(database, FairShare(spare_slots=0), cpus=cpus, look_s=300.0)
        self.ann, self.bob, self.eve = (self.lab.user(name) for name in ("ann", "bob", "eve"))
        self.project = self.lab.project("vision", [self.ann, self.bob], **limits)
        self.lab.submit(self.ann, 1, LONG_S, project=self.project)
        self.lab.run(60.0)

    def starts(self, owner: int, project: int = OWN) -> list[float]:
        """Submit an experiment, and return the times at which it starts within six hours."""
        (id,) = self.lab.submit(owner, 1, LONG_S, project=project)
        self.lab.run(6 * HOUR_S)
        return [at for at, _, started in self.lab.starts if started == id]


def test_a_run_of_a_project_gives_way_to_a_user_of_less_usage(database: Database) -> None:
    sliced = Sliced(database)
    assert sliced.starts(sliced.eve)[0] <= sliced.lab.fair_share.slice_s + HOUR_S


def test_a_run_gives_way_to_another_member_of_its_project(database: Database) -> None:
    sliced = Sliced(database)
    assert sliced.starts(sliced.bob, sliced.project)[0] <= sliced.lab.fair_share.slice_s + HOUR_S


@pytest.mark.parametrize("cpus", [1, 3])
def test_members_of_a_full_project_share_its_runs_slice_by_slice(
    either: Database, cpus: int
) -> None:
    sliced = Sliced(either, cpus, max_running=1)
    sliced.lab.submit(sliced.bob, 1, LONG_S, project=sliced.project)
    sliced.lab.run(40 * HOUR_S)
    owners = [owner for _, owner, _ in sliced.lab.starts]
    assert owners[:10] == [sliced.ann, sliced.bob] * 5
    assert len(sliced.lab.going) == 1


def test_only_a_run_of_a_full_project_is_shown_as_displaced_by_a_member(database: Database) -> None:
    lab = Sliced(database, cpus=2, max_running=1)
    lab.lab.submit(lab.eve, 1, LONG_S)
    lab.lab.submit(lab.bob, 1, LONG_S, project=lab.project)
    lab.lab.run(HOUR_S)
    with database.snapshot() as session:
        snapshot = QueueSnapshots(WITHIN_S, lab.lab.fair_share).of(session, set())
        shown = {slot.run.owner_id: slot.displacers for slot in turns.slots(snapshot) if slot.run}
    assert [user.owner_id for user in shown[lab.ann]] == [lab.bob]
    assert not shown[lab.eve]


def test_the_place_that_a_run_leaves_to_a_member_is_taken_by_no_other(either: Database) -> None:
    """The other worker could start ann's next experiment before."""
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=1, gpus=1)
    ann, bob = lab.user("ann"), lab.user("bob")
    project = lab.project("vision", [ann, bob], max_running=1)
    (of_ann,) = lab.submit(ann, 1, LONG_S, project=project)
    (of_bob,) = lab.submit(bob, 1, LONG_S, "cuda", project=project)
    assert chosen(lab, Queue.CPU) == of_ann
    with either.transaction() as session:
        session.get_one(Worker, "gpu0").reserved_for = of_bob
    assert chosen(lab, Queue.CPU) is None
    assert chosen(lab, Queue.GPU) == of_bob


def test_no_further_place_is_kept_while_the_run_that_leaves_one_lasts(either: Database) -> None:
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=1, gpus=1)
    ann, bob = lab.user("ann"), lab.user("bob")
    project = lab.project("vision", [ann, bob], max_running=2)
    lab.submit(ann, 1, LONG_S, "cuda", project=project)
    lab.run(60.0)
    (of_ann,) = lab.submit(ann, 1, LONG_S, project=project)
    (of_bob,) = lab.submit(bob, 1, LONG_S, "cuda", project=project)
    with either.transaction() as session:
        session.get_one(Worker, "gpu0").reserved_for = of_bob
    assert chosen(lab) == of_ann


def test_a_reservation_that_cannot_be_used_ends(either: Database) -> None:
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=1, gpus=1)
    ann, bob = lab.user("ann"), lab.user("bob", max_running=0)
    project = lab.project("vision", [ann, bob], max_running=1)
    (of_ann,) = lab.submit(ann, 1, LONG_S, project=project)
    (of_bob,) = lab.submit(bob, 1, LONG_S, "cuda", project=project)
    with either.transaction() as session:
        session.get_one(Worker, "gpu0").reserved_for = of_bob
    lab.run(60.0)
    lab.run(60.0)
    assert [id for _, _, id in lab.starts] == [of_ann]


def test_no_run_gives_way_to_its_owner_in_another_account(database: Database) -> None:
    sliced = Sliced(database)
    assert sliced.starts(sliced.ann) == []


def test_a_member_does_not_gain_by_the_usage_of_the_project(database: Database) -> None:
    """A new member of a project that has used much waits until users with less have their turn."""
    lab = SharedLab(database, FairShare(spare_slots=0), cpus=1)
    ann, bob, eve = (lab.user(name) for name in ("ann", "bob", "eve"))
    project = lab.project("vision", [ann, bob])
    set_usage(lab, {Member(ann, project): 1000.0, Member(eve): 500.0})
    lab.submit(bob, 1, JOB_S, project=project)
    (of_eve,) = lab.submit(eve, 1, JOB_S)
    (own,) = lab.submit(bob, 1, JOB_S)
    lab.run()
    assert [id for _, _, id in lab.starts][:2] == [own, of_eve]


def test_the_share_of_a_project_is_that_of_all_its_members(database: Database) -> None:
    lab = SharedLab(database, FairShare(), cpus=1)
    ann, bob = lab.user("ann"), lab.user("bob")
    project = lab.project("vision", [ann, bob], shares=2)
    set_usage(lab, {Member(ann, project): 200.0, Member(bob, project): 100.0, Member(bob): 100.0})
    with database.snapshot() as session:
        everyone = shares.standings(session, lab.fair_share)
    of_project = shares.share_of_project(project, everyone, ())
    assert of_project.raw_usage == pytest.approx(300, rel=1e-3)
    assert of_project.effectv_usage == pytest.approx(3 / 4, rel=1e-3)
    assert of_project.norm_shares == pytest.approx(2 / 3)
    own = shares.share_of(bob, everyone, ())
    assert own.effectv_usage == pytest.approx(1 / 4, rel=1e-3)
    assert own.norm_shares == pytest.approx(1 / 3)


def test_both_limits_hold(either: Database) -> None:
    """The project's counts the runs of all members, a user's the runs in all accounts."""
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=9)
    ann, bob = lab.user("ann", max_running=3), lab.user("bob")
    project = lab.project("vision", [ann, bob], max_running=2)
    for user in (ann, bob):
        in_project = lab.submit(user, 5, JOB_S, project=project)
        lab.submit(user, 3, JOB_S)
    lab.run(0.0)
    assert Counter(lab.projects[id] for _, _, id in lab.starts)[project] == 2
    assert Counter(owner for _, owner, _ in lab.starts)[ann] == 3
    assert reason(lab, in_project[-1]) == "2 runs of project vision are running, its limit is 2"


def test_the_gpu_hours_of_a_project_are_limited(either: Database) -> None:
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=1, gpus=2)
    ann, bob = lab.user("ann"), lab.user("bob")
    project = lab.project("vision", [ann, bob], max_gpu_hours_a_day=2.0)
    for user in (ann, bob):
        last = lab.submit(user, 9, HOUR_S, "cuda", project=project)[-1]
    lab.run(5 * HOUR_S)
    assert 2 <= len(lab.starts) <= 3
    assert reason(lab, last).startswith("project vision had ")


def reason(lab: SharedLab, id: str) -> str:
    with lab.database.snapshot() as session:
        experiment = session.get_one(Experiment, id)
        snapshots = QueueSnapshots(WITHIN_S, lab.fair_share)
        return queue_positions(session, [experiment], snapshots)[id].reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_accounts_and_members_get_their_shares(seed: int, database: Database) -> None:
    """`python -m tests.chaos.fairness 1000 projects` simulates a thousand of these labs."""
    assert far_from_their_shares(database, seed) == []

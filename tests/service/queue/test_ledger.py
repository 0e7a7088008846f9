"""The ledger of slots: its lines begin and end with attempts, and limits of hours count them."""

import random
from collections.abc import Callable

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.experiments.models import Attempt, Experiment, Usage
from service.fair_share import FairShare
from service.queue import lease, ledger
from service.queue.shares import standings
from service.vocabulary import Status
from tests.service.queue.test_fair_share import JOB_S
from tests.support.invariants import check
from tests.support.shared_lab import SharedLab
from tests.support.starting import charges, fold


def test_gpu_hours_of_a_day_are_limited(either: Database) -> None:
    """A user at the limit starts no other GPU run until enough hours are older than a day, and
    keeps the CPU. Of a run that began earlier, only the part within the day counts."""
    hour_s, day_s = 3600.0, 86_400.0
    lab = SharedLab(either, FairShare(max_gpu_hours_a_day=10), cpus=1, gpus=1)
    free, limited = lab.user("free", max_gpu_hours_a_day=1000), lab.user("limited")
    lab.submit(free, 60, hour_s, device="cuda")
    lab.submit(limited, 30, hour_s, device="cuda")
    (on_cpu,) = lab.submit(limited, 1, hour_s, priority=-1)
    lab.run(22 * hour_s)
    starts = [at for at, owner, one in lab.starts if owner == limited and one != on_cpu]
    assert len(starts) == 10
    assert any(one == on_cpu for _, _, one in lab.starts)
    lab.run(starts[0] + day_s + 0.5 * hour_s - lab.time)
    with either.snapshot() as session:
        hours = ledger.gpu_hours_of_the_day(session)[limited]
    assert hours == pytest.approx(had_s(starts, lab.time, hour_s) / hour_s)
    assert 9 < hours < 10  # half of the first is more than a day ago
    lab.run(28 * hour_s)
    starts = [at for at, owner, one in lab.starts if owner == limited and one != on_cpu]
    first_ended = starts[0] + hour_s
    assert starts[10] >= day_s
    assert all(had_s(starts, at, hour_s) < 10 * hour_s for at in starts)
    assert starts[10] <= first_ended + day_s


def had_s(starts: list[float], at: float, length_s: float) -> float:
    """Return the seconds of slots within the last day, from runs that began before."""
    ends = [(max(s, at - 86_400), min(s + length_s, at)) for s in starts if s < at]
    return sum(max(0.0, end - begin) for begin, end in ends)


def test_no_slot_is_reserved_for_a_gpu_run_without_hours(either: Database) -> None:
    lab = SharedLab(either, FairShare(), cpus=1, gpus=1)
    spent = lab.user("spent", max_running=1, max_gpu_hours_a_day=JOB_S / 3600)
    lab.submit(spent, 2, JOB_S, device="cuda", priority=1)
    (on_cpu,) = lab.submit(spent, 1, JOB_S)
    lab.run(2.5 * JOB_S)
    assert [one for _, _, one in lab.starts][1] == on_cpu


def test_charges_are_the_sum_of_the_ledger(either: Database) -> None:
    """After each fold: the integral of decayed use over all attempts, with the GPU's weight."""
    fair_share = FairShare(half_life_s=500, gpu_weight=7, advance_s=0)
    lab = SharedLab(either, fair_share, cpus=2, gpus=1)
    generator = random.Random(1)
    users = [1, lab.user("second")]
    for _ in range(15):
        device = generator.choice(["cpu", "cuda", "auto"])
        lab.submit(generator.choice(users), 1, generator.uniform(1, 300), device)
    for _ in range(8):
        lab.run(generator.uniform(1, 120))
        with either.transaction() as session:
            fold(session, fair_share)
            found = charges(session, fair_share)
            lines = session.scalars(select(Attempt)).all()
        for user in users:
            mine = [ledger.use_of(line) for line in lines if line.owner_id == user]
            expected = sum(_integral(use, lab.clock.now, half_life_s=500) for use in mine)
            assert found[user] == pytest.approx(expected, rel=1e-4)
    with either.snapshot() as session:
        assert session.scalar(select(func.count()).where(Attempt.folded))
        assert session.scalar(select(func.count()).select_from(Usage)) == 2


def _integral(use: ledger.Use, clock: float, half_life_s: float) -> float:
    """Integrate by the midpoint rule with a thousand steps."""
    end = clock if use.ended_at is None else use.ended_at
    step_s = (end - use.started_at) / 1000
    middles = (use.started_at + (i + 0.5) * step_s for i in range(1000))
    decayed = sum(2 ** ((middle - clock) / half_life_s) for middle in middles)
    return (7 if use.queue == "gpu" else 1) * step_s * decayed


ENDINGS: dict[str, Callable[[Session, lease.Claim], object]] = {
    "finished": lambda session, claim: lease.finish(session, claim, Status.SUCCEEDED),
    "failed": lambda session, claim: lease.finish(
        session, claim, Status.FAILED, lease.FailureCause("error", "why")
    ),
    "handed back": lease.release,
    "killed": lambda session, claim: lease.mark_lost(session, claim, max_lost=3),
    "expired": lambda session, claim: _expire_and_reap(session),
}


def _expire_and_reap(session: Session) -> None:
    session.execute(update(Experiment).values(lease_expires_at=Experiment.lease_expires_at - 1e9))
    lease.expire(session, max_lost=3)


@pytest.mark.parametrize("how", ENDINGS)
def test_every_end_of_an_attempt_ends_its_ledger_line(either: Database, how: str) -> None:
    lab = SharedLab(either, FairShare())
    (one,) = lab.submit(1, 1, JOB_S)
    lab.run(1)
    with either.transaction() as session:
        claim = lease.Claim(one, 1, {})
        ENDINGS[how](session, claim)
        fold(session, lab.fair_share)
    counts = check(either, {one: []}, settled=False, fair_share=lab.fair_share)
    assert counts.clean, str(counts)
    with either.snapshot() as session:
        assert session.scalar(select(Attempt.folded)) is True


def test_a_user_does_not_pay_for_a_delayed_controller(either: Database) -> None:
    lab = SharedLab(either, FairShare())
    lab.submit(1, 1, JOB_S)
    lab.run(1)
    with either.transaction() as session:
        session.execute(update(Experiment).values(lease_expires_at=lab.clock.now + 10))
    lab.clock.now += 10_000
    with either.transaction() as session:
        lease.expire(session, max_lost=3)
        fold(session, FairShare(advance_s=0))
        (mine,) = standings(session, lab.fair_share)
    assert mine.charged_s < 12

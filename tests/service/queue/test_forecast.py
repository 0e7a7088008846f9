"""Reasons and expected starts with several users."""

from collections.abc import Sequence

import pytest
from sqlalchemy import select, update

from service.db.engine import Database
from service.experiments.models import Attempt, Experiment, Queue
from service.fair_share import FairShare
from service.queue import snapshot
from service.queue.forecast import Forecast, Running, rounded
from service.queue.position import queue_positions
from service.queue.schemas import QueuePosition
from service.queue.snapshot import QueueSnapshots
from service.vocabulary import Status
from tests.support.shared_lab import WITHIN_S, SharedLab

JOB_S = 100.0


def found_places(lab: SharedLab, ids: Sequence[str]) -> dict[str, QueuePosition]:
    """Positions requested by each user. A page of all users has the same ones, and so has a single
    snapshot for all users."""
    found: dict[str, QueuePosition] = {}
    with lab.database.snapshot() as session:
        query = select(Experiment).where(Experiment.id.in_(ids), Experiment.status == Status.QUEUED)
        waiting = session.scalars(query).all()
        for owner in {one.owner_id for one in waiting}:
            mine = [one for one in waiting if one.owner_id == owner]
            found |= queue_positions(session, mine, queue_snapshots(lab))
        assert queue_positions(session, waiting, queue_snapshots(lab)) == found
        kept = queue_snapshots(lab)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot, "MAX_AGE_S", 1000.0)
            assert [queue_positions(session, [one], kept)[one.id] for one in waiting] == [
                found[one.id] for one in waiting
            ]
    return found


def queue_snapshots(lab: SharedLab) -> QueueSnapshots:
    return QueueSnapshots(WITHIN_S, lab.fair_share)


def test_reasons_for_a_reader_do_not_mention_the_readers_limit(database: Database) -> None:
    lab = SharedLab(database, FairShare(max_running=1), cpus=2)
    other = lab.user("b")
    lab.submit(1, 1, JOB_S)
    lab.run(1)
    (waits,) = lab.submit(1, 1, JOB_S)
    with database.snapshot() as session:
        one = session.get_one(Experiment, waits)
        reasons = [
            queue_positions(session, [one], queue_snapshots(lab), reader)[waits].reason
            for reader in (1, other)
        ]
    assert reasons == [
        "1 of your runs are running, your limit is 1",
        "its owner has the maximum number of running experiments",
    ]


def test_reserved_workers_are_the_reason(either: Database) -> None:
    lab = SharedLab(either, FairShare(), cpus=2)
    other = lab.user("other")
    _, waits = lab.submit(1, 2, JOB_S)
    lab.run(1)
    place = found_places(lab, [waits])[waits]
    assert place.reason == "your runs have all CPU workers but 1, kept for other users"
    with either.snapshot() as session:
        one = session.get_one(Experiment, waits)
        told = queue_positions(session, [one], queue_snapshots(lab), other)[waits].reason
    assert told == "its owner's runs have all workers but the spare ones"
    (others,) = lab.submit(other, 1, JOB_S)
    assert found_places(lab, [others])[others].position == 0


def test_a_start_is_estimated_from_progress_or_recent_runs(either: Database) -> None:
    lab = SharedLab(either, FairShare(), cpus=1)
    (running,) = lab.submit(1, 1, 1000.0)
    first, second = lab.submit(1, 2, JOB_S)
    lab.run(100)
    unknown = found_places(lab, [first])[first]
    assert unknown.estimated_start is None
    assert unknown.estimate == "it is not known how long the runs before it take"
    with either.transaction() as session:
        half = update(Experiment).where(Experiment.id == running)
        session.execute(half.values(progress_done=1, progress_total=4))
    told = found_places(lab, [first, second])
    start = told[first].estimated_start
    assert start is not None
    assert 300 <= start.timestamp() - lab.clock.now <= 300 + 60
    assert told[second].estimated_start is None  # no run has ended yet
    lab.submit(1, 3, JOB_S, priority=9)
    lab.run(1250)  # until four have ended
    (late,) = found_places(lab, [second]).values() or [None]
    assert late is not None
    assert late.estimated_start is not None


@pytest.mark.parametrize(
    ("free_in_s", "told_s"),
    [(0.5, 1), (59.5, 60), (60, 60), (61, 120), (3590, 3600), (3601, 4200), (4201, 4800)],
)
def test_a_distant_start_is_rounded(free_in_s: float, told_s: float) -> None:
    """It is given to the second within a minute, to the minute within an hour, then to ten
    minutes."""
    assert rounded(free_in_s, 0.0) == told_s


@pytest.mark.parametrize(
    ("position", "start_s"), [(0, 1), (1, 2), (2, 11), (3, 12), (4, 21), (5, 22)]
)
def test_runs_before_a_start_take_the_mean_time_on_the_first_free_slot(
    position: int, start_s: float
) -> None:
    running = [Running(owner_id=1, end=end) for end in (2.0, 1.0)]
    forecast = Forecast(clock=0.0, mean_s=10.0, running=running)
    assert forecast.start_after(position, 0, running) == start_s


def test_a_start_follows_the_progress_of_current_runs(either: Database) -> None:
    """The speed is measured from the first report, and holds for a resumed run."""
    lab = SharedLab(either, FairShare(), cpus=1)
    (running,) = lab.submit(1, 1, 1000.0)
    (waits,) = lab.submit(1, 1, JOB_S)
    lab.run(100)
    with either.transaction() as session:
        told = update(Experiment).where(Experiment.id == running)
        pace = {"progress_at": lab.clock.now - 10, "progress_eta_s": 40.0}
        session.execute(told.values(progress_done=1, progress_total=4, **pace))
    start = found_places(lab, [waits])[waits].estimated_start
    assert start is not None
    assert 30 <= start.timestamp() - lab.clock.now <= 31


def test_the_progress_of_a_resumed_run_gives_no_start(either: Database) -> None:
    """It began before this attempt did: the time of the attempt says nothing about its speed."""
    lab = SharedLab(either, FairShare(), cpus=1)
    lab.submit(1, 3, JOB_S)
    lab.run()
    (running,) = lab.submit(1, 1, 1000.0)
    (waits,) = lab.submit(1, 1, JOB_S)
    lab.run(10)
    half = update(Experiment).where(Experiment.id == running)
    half = half.values(progress_done=1, progress_total=2)
    for attempt, left_s in ((1, 10), (2, 90)):
        with either.transaction() as session:
            session.execute(half)
            session.execute(
                update(Attempt).where(Attempt.experiment_id == running).values(attempt=attempt)
            )
        start = found_places(lab, [waits])[waits].estimated_start
        assert start is not None
        assert left_s <= start.timestamp() - lab.clock.now <= left_s + 60


def test_an_overdue_run_may_end_at_any_moment(either: Database) -> None:
    lab = SharedLab(either, FairShare(), cpus=2)
    capped = lab.user("capped", max_running=1)
    running, waits = lab.submit(capped, 2, 1000.0)
    lab.run(100)
    with either.transaction() as session:
        told = update(Experiment).where(Experiment.id == running)
        session.execute(told.values(progress_at=lab.clock.now - 90, progress_eta_s=40.0))
    start = found_places(lab, [waits])[waits].estimated_start
    assert start is not None
    assert 0 <= start.timestamp() - lab.clock.now <= 1


def test_a_user_at_its_limit_starts_when_its_own_run_ends(either: Database) -> None:
    lab = SharedLab(either, FairShare(), cpus=3)
    capped = lab.user("capped", max_running=2)
    (one, _) = lab.submit(capped, 2, JOB_S)
    (waits,) = lab.submit(capped, 1, JOB_S)
    lab.run(50)
    place = found_places(lab, [waits])[waits]
    assert place.reason == "2 of your runs are running, your limit is 2"
    assert place.estimated_start is None
    with either.transaction() as session:
        quarter = update(Experiment).where(Experiment.id == one)
        session.execute(quarter.values(progress_done=1, progress_total=2))
    start = found_places(lab, [waits])[waits].estimated_start
    assert start is not None
    assert 50 <= start.timestamp() - lab.clock.now <= 51


def test_later_experiments_of_a_user_at_its_limit_wait_for_more_ends(either: Database) -> None:
    lab = SharedLab(either, FairShare(), cpus=3)
    capped = lab.user("capped", max_running=1)
    lab.submit(1, 3, JOB_S)
    lab.run()
    lab.submit(capped, 1, JOB_S)
    lab.run(50)
    waiting = lab.submit(capped, 3, JOB_S)
    found = found_places(lab, waiting)
    starts = [found[id].estimated_start for id in waiting]
    for number, start in enumerate(starts):
        assert start is not None
        assert 0 <= start.timestamp() - lab.clock.now - 50 - number * JOB_S <= 60


def test_a_users_gpu_hours_are_the_reason(either: Database) -> None:
    lab = SharedLab(either, FairShare(max_gpu_hours_a_day=0.5), gpus=1)
    other = lab.user("other")
    lab.submit(1, 1, 3600.0, device="cuda")
    lab.run()
    (waits,) = lab.submit(1, 1, JOB_S, device="cuda")
    (others,) = lab.submit(other, 1, JOB_S, device="cuda")
    place = found_places(lab, [waits])[waits]
    assert place.reason == "you had 1 GPU-hours within the last 24, your limit is 0.5"
    assert place.estimated_start is None
    assert found_places(lab, [others])[others].position == 0
    with either.snapshot() as session:
        one = session.get_one(Experiment, waits)
        told = queue_positions(session, [one], queue_snapshots(lab), other)[waits].reason
    assert told == "its owner has used up the GPU-hours of a day"


def test_the_slot_reserved_for_a_gpu_run_is_the_reason(either: Database) -> None:
    lab = SharedLab(either, FairShare(), cpus=1, gpus=1)
    other, capped = lab.user("other"), lab.user("capped", max_running=1)
    lab.submit(other, 1, JOB_S, device="cuda")
    lab.run(1)
    lab.submit(capped, 1, JOB_S, device="cuda")
    (on_cpu,) = lab.submit(capped, 1, JOB_S)
    lab.run(1)
    assert not lab.idle[Queue.GPU]
    reason = "your limit is 1, and your GPU run before it has the last place"
    assert found_places(lab, [on_cpu])[on_cpu].reason == reason

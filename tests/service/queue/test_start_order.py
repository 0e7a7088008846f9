"""Positions by the formula, compared with the starts that follow."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Experiment
from service.fair_share import FairShare
from service.queue.position import queue_positions
from service.queue.snapshot import QueueSnapshots
from tests.support.shared_lab import WITHIN_S, SharedLab

JOB_S = 100.0
USED_S = (37.13, 91.77, 153.91, 266.39)
"""Usage that makes no two users with different usage equal, whatever has started."""
USERS = st.lists(
    st.fixed_dictionaries(
        {
            "shares": st.sampled_from([1, 2, 4]),
            "max_running": st.sampled_from([None, None, 1, 2]),
            "has_used": st.booleans(),
            "priorities": st.lists(st.sampled_from([-3, 0, 0, 7, 150, 160]), max_size=6),
        }
    ),
    min_size=1,
    max_size=len(USED_S),
)


def positions(lab: SharedLab, ids: Sequence[str]) -> list[int]:
    with lab.database.snapshot() as session:
        waiting = session.scalars(select(Experiment).where(Experiment.id.in_(ids))).all()
        found = queue_positions(session, waiting, QueueSnapshots(WITHIN_S, lab.fair_share))
    return [found[id].position for id in ids]


def test_positions_are_the_order_of_starts_until_a_run_ends(database: Database) -> None:
    """Idle workers start all that may start. A start charges `advance_s`, although the last runs
    took longer."""
    lab, numbers = SharedLab(database, FairShare(spare_slots=0), cpus=6 * len(USED_S)), count()

    @settings(max_examples=25, deadline=None)
    @given(users=USERS)
    def check(users: list[dict[str, Any]]) -> None:
        waiting: list[str] = []
        ids = []
        for user, used_s in zip(users, USED_S, strict=False):
            columns = {name: user[name] for name in ("shares", "max_running")}
            ids.append(lab.user(f"user {next(numbers)}", may_jump=True, **columns))
            if user["has_used"]:
                lab.submit(ids[-1], 1, used_s)
        lab.run()
        for id, user in zip(ids, users, strict=True):
            for priority in user["priorities"]:
                waiting += lab.submit(id, 1, 10 * JOB_S, priority=priority)
        expected = dict(zip(waiting, positions(lab, waiting), strict=True))
        before = len(lab.starts)
        lab.run(0.0)
        started = [id for _, _, id in lab.starts[before:]]
        assert [expected[id] for id in started] == list(range(len(started)))
        lab.run()

    check()


def test_a_distant_position_is_estimated_from_shares(database: Database) -> None:
    """One of two users has twice the shares of the other."""
    lab = SharedLab(database, FairShare(), cpus=1)
    double = lab.user("double", shares=2)
    lab.submit(1, 1, JOB_S)
    lab.run(1)
    mine = lab.submit(1, 300, JOB_S)
    lab.submit(double, 900, JOB_S)
    numbers = (20, 200, 299)
    found = positions(lab, [mine[number] for number in numbers])
    assert found == pytest.approx([3 * number for number in numbers], abs=4)


def test_a_user_with_a_limit_delays_others_only_as_much_as_it_allows(database: Database) -> None:
    """It has had nothing, so that without its limit all its experiments would start first."""
    lab = SharedLab(database, FairShare(spare_slots=0), cpus=3)
    other, capped = lab.user("other"), lab.user("capped", max_running=1)
    lab.submit(other, 30, JOB_S)
    lab.run()
    waiting, _ = lab.submit(other, 20, JOB_S), lab.submit(capped, 30, JOB_S)
    lab.run(1)
    found, before = positions(lab, waiting[4:]), len(lab.starts)
    lab.run()
    order = [id for _, _, id in lab.starts[before:]]
    assert found == pytest.approx([order.index(id) for id in waiting[4:]], abs=2)

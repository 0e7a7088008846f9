"""Runs that give way: which ones, for whom, and how they come back."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from service.accounts.models import OWN
from service.db.engine import Database
from service.experiments.models import Attempt, Event, Experiment, Queue
from service.fair_share import HOUR_S, FairShare
from service.queue import giving_way, lease
from service.queue.giving_way import Decision, Run, Waiting, may_displace, plan
from service.queue.rooms import Place, SharedMemory, places
from service.queue.shares import Level
from service.queue.statistics import statistics
from service.vocabulary import DesiredState, Status, Visibility
from service.workers.models import Drain, Worker
from tests.support.shared_lab import WITHIN_S
from tests.support.sliced_lab import SlicedLab
from tests.support.slices import week
from tests.support.starting import fold, start_next

SLICE_S = 4 * HOUR_S
LONG_S = 1000 * HOUR_S


def level(usage: float) -> Level:
    """Usage for the shares, to be compared with that of the same account."""
    return Level((0, 1), 0.0, usage)


RUN = Run(
    experiment_id="run",
    worker_id="w",
    owner_id=1,
    usage=level(100.0),
    project_id=OWN,
    jumps=False,
    lasted_s=SLICE_S,
    left_s=LONG_S,
    has_progressed=True,
    gave_way_before=False,
    gives_way_to=None,
)
WAITING = Waiting(
    experiment_id="waiting",
    owner_id=2,
    usage=level(50.0),
    jumps=False,
    is_next=True,
    family="ppca",
    memory_bytes=0,
    waited_s=0.0,
)


def changed(thing: Any, **values: Any) -> Any:
    return dataclasses.replace(thing, **values)


def place(worker: str = "w", **values: Any) -> Place:
    given: dict[str, Any] = {"memories": (), "max_run": float("inf"), "is_idle": False}
    return Place(worker, Queue.GPU, **{**given, "families": frozenset({"ppca"}), **values})


def gives_way(waiting: Any, runs: Any, slots: Any) -> Mapping[str, str]:
    return plan([[one] for one in waiting], runs, slots, SLICE_S).gives_way_to


@pytest.mark.parametrize(
    ("run", "waiting", "may"),
    [
        ({}, {}, True),
        ({"lasted_s": SLICE_S - 1}, {}, False),
        ({}, {"usage": level(100.0)}, False),
        ({}, {"owner_id": 1}, False),
        ({"has_progressed": False}, {}, False),
        ({"left_s": SLICE_S / 5}, {}, False),
        ({"left_s": SLICE_S / 5}, {"waited_s": 1.3 * SLICE_S}, False),
        ({"left_s": SLICE_S / 5, "lasted_s": 1.3 * SLICE_S}, {}, False),
        ({"left_s": SLICE_S / 5, "lasted_s": 1.3 * SLICE_S}, {"waited_s": 1.3 * SLICE_S}, True),
        ({"left_s": 60.0, "lasted_s": 1.3 * SLICE_S}, {"waited_s": 1.3 * SLICE_S}, False),
        ({"jumps": True}, {}, False),
        ({"jumps": True}, {"jumps": True}, True),
        ({"lasted_s": 0.0}, {"jumps": True, "usage": level(200.0)}, True),
        ({"lasted_s": SLICE_S / 5, "gave_way_before": True}, {"jumps": True}, False),
        ({"lasted_s": SLICE_S / 3, "gave_way_before": True}, {"jumps": True}, True),
    ],
)
def test_a_run_gives_way(run: dict[str, Any], waiting: dict[str, Any], may: bool) -> None:
    given = changed(WAITING, **waiting), changed(RUN, **run)
    assert may_displace(*given, SLICE_S) == may
    assert bool(gives_way(given[:1], given[1:], [place()])) == may


def test_the_run_whose_owner_has_the_most_usage_gives_way() -> None:
    runs = [
        changed(RUN, experiment_id=f"{i}", worker_id=f"{i}", owner_id=3 + i, usage=level(usage))
        for i, usage in enumerate((100.0, 300.0, 200.0))
    ]
    assert gives_way([WAITING], runs, [place(f"{i}") for i in range(3)]) == {"1": "waiting"}


@pytest.mark.parametrize(
    "useless",
    [
        {"families": frozenset({"vae"})},
        {"store_full": True},
        {"max_run": 1.0},
        {"memories": [SharedMemory("gpu", Queue.GPU, total=10, free=0, taken={"w": 1})]},
    ],
)
def test_no_run_gives_way_where_the_other_cannot_start(useless: dict[str, Any]) -> None:
    waiting = changed(WAITING, memory_bytes=2)
    assert gives_way([waiting], [RUN], [place()])
    assert gives_way([waiting], [RUN], [place(**useless)]) == {}


def test_only_runs_of_a_full_project_give_way_to_its_members() -> None:
    waiting = changed(WAITING, project_id=5, project_places=0)
    outside = changed(RUN, experiment_id="outside", worker_id="w2")
    slots = [place("w"), place("w2"), place("idle", is_idle=True)]
    assert gives_way([waiting], [RUN, outside], slots) == {}
    of_project = changed(RUN, project_id=5)
    assert gives_way([waiting], [of_project, outside], slots) == {"run": "waiting"}
    others = [changed(waiting, experiment_id=f"of {i}", owner_id=i) for i in (2, 3)]
    assert gives_way(others, [of_project, outside], slots) == {"run": "of 2"}


def test_no_run_gives_way_if_a_slot_is_free_or_soon_free() -> None:
    idle = place("idle", is_idle=True)
    assert gives_way([WAITING], [RUN], [place(), idle]) == {}
    soon = changed(RUN, experiment_id="soon", worker_id="soon", left_s=60.0)
    assert gives_way([WAITING], [RUN, soon], [place(), place("soon")]) == {}
    second = changed(WAITING, experiment_id="second", owner_id=3)
    both = gives_way([WAITING, second], [RUN, soon], [place(), place("soon")])
    assert both == {"run": "second"}


def test_a_priority_above_all_waits_a_minute_and_no_longer() -> None:
    waiting = changed(WAITING, jumps=True)
    for left_s, expected in ((30.0, {}), (600.0, {"run": "waiting"})):
        soon = changed(RUN, experiment_id="soon", worker_id="soon", left_s=left_s)
        assert gives_way([waiting], [RUN, soon], [place(), place("soon")]) == expected


def card(*sizes: int, total: int = 80) -> SharedMemory:
    """The memory of a GPU. The worker i has a run of the i-th size."""
    taken = {f"{i}": size for i, size in enumerate(sizes)}
    return SharedMemory("gpu", Queue.GPU, total, free=total - sum(sizes), ours=sum(sizes),
                        taken=taken)  # fmt: skip


def test_several_runs_give_way_to_a_large_one_if_all_have_had_their_slice() -> None:
    memory = card(30, 30)
    on_card = [place(f"{i}", memories=[memory]) for i in range(2)]
    on_card.append(place("2", memories=[memory], is_idle=True))
    runs = [
        changed(RUN, experiment_id=f"run {i}", worker_id=f"{i}", owner_id=3 + i) for i in range(2)
    ]
    large = changed(WAITING, memory_bytes=70)
    both = {"run 0": "waiting", "run 1": "waiting"}
    assert gives_way([large], runs, on_card) == both
    assert len(gives_way([changed(large, memory_bytes=50)], runs, on_card)) == 1
    younger = [runs[0], changed(runs[1], lasted_s=SLICE_S / 2)]
    assert gives_way([large], younger, on_card) == {}
    assert gives_way([changed(large, is_next=False)], runs, on_card) == {}


def test_no_run_gives_way_to_another_where_memory_is_kept_for_a_large_one() -> None:
    memory = card(30, 30)
    on_card = [place(f"{i}", memories=[memory]) for i in range(2)]
    runs = [
        RUN,
        changed(RUN, experiment_id="young", worker_id="1", owner_id=4, lasted_s=60.0),
    ]
    runs[0] = changed(RUN, worker_id="0")
    large = changed(WAITING, memory_bytes=70)
    small = changed(WAITING, experiment_id="small", owner_id=3, is_next=False, memory_bytes=1)
    assert gives_way([small], runs, on_card) == {"run": "small"}
    assert gives_way([large, small], runs, on_card) == {}


def test_further_users_are_not_read_while_no_run_can_end() -> None:
    """A lab may have a thousand users who wait. Those that jump are all read."""

    def users(*jumps: bool) -> Iterator[list[Waiting]]:
        for number, one in enumerate(jumps):
            yield [changed(WAITING, experiment_id=f"{number}", owner_id=2 + number, jumps=one)]
        raise AssertionError("it reads on")

    young = [
        changed(RUN, experiment_id=f"run {i}", worker_id=f"{i}", owner_id=9, lasted_s=60.0)
        for i in range(3)
    ]
    slots = [place(f"{i}") for i in range(3)]
    found = plan(users(True, True, False), young, slots, SLICE_S)
    assert {*found.gives_way_to.values()} == {"0", "1"}


def test_one_that_cannot_be_placed_keeps_no_others_from_their_places() -> None:
    """The next in turn waits for a family that only its owner's own worker has."""
    mine = changed(RUN, experiment_id="mine", worker_id="mine", owner_id=2)
    own = place("mine", families=frozenset({"own"}))
    waiting = changed(WAITING, family="own")
    other = changed(WAITING, experiment_id="other", owner_id=3, is_next=False)
    assert gives_way([waiting, other], [mine, RUN], [own, place()]) == {"run": "other"}


def test_memory_is_kept_for_a_large_run_on_one_gpu_only() -> None:
    runs, slots = [], []
    for number in range(4):
        memory = SharedMemory(f"gpu{number}", Queue.GPU, 80, free=40, ours=40)
        for worker, lasted_s in ((f"a{number}", SLICE_S), (f"b{number}", 60.0)):
            memory.taken[worker] = 20
            slots.append(place(worker, memories=[memory]))
            run = changed(RUN, experiment_id=worker, worker_id=worker, owner_id=4)
            runs.append(changed(run, lasted_s=lasted_s))
    large = changed(WAITING, memory_bytes=70)
    small = changed(WAITING, experiment_id="small", owner_id=3, is_next=False, memory_bytes=10)
    assert len(gives_way([large, small], runs, slots)) == 1


RUNS = st.builds(
    Run,
    experiment_id=st.just(""),
    worker_id=st.just(""),
    owner_id=st.integers(1, 4),
    usage=st.integers(0, 3).map(level),
    jumps=st.booleans(),
    lasted_s=st.sampled_from([0.0, SLICE_S / 5, SLICE_S]),
    left_s=st.sampled_from([60.0, SLICE_S / 5, LONG_S]),
    has_progressed=st.sampled_from([True, True, False]),
    gave_way_before=st.booleans(),
    gives_way_to=st.sampled_from([None, "x"]),
)
WAITINGS = st.builds(
    Waiting,
    experiment_id=st.just(""),
    owner_id=st.integers(1, 4),
    usage=st.integers(0, 3).map(level),
    jumps=st.booleans(),
    is_next=st.just(False),
    family=st.sampled_from(["ppca", "vae"]),
    memory_bytes=st.sampled_from([0, 20, 60]),
    waited_s=st.just(0.0),
)


@given(
    runs=st.lists(RUNS, min_size=1, max_size=6),
    waiting=st.lists(WAITINGS, min_size=1, max_size=4),
    sizes=st.lists(st.integers(0, 30), min_size=6, max_size=6),
    idle=st.integers(0, 1),
)
@settings(max_examples=300, deadline=None)
def test_no_run_gives_way_in_vain(
    runs: list[Run], waiting: list[Waiting], sizes: list[int], idle: int
) -> None:
    """Each run that gives way makes room for an experiment that cannot start without that, and may
    displace it. Two workers share the memory of a GPU."""
    runs = [changed(run, experiment_id=f"r{i}", worker_id=f"{i}") for i, run in enumerate(runs)]
    waiting = [
        changed(one, experiment_id=f"w{i}", is_next=i == 0, owner_id=10 + i if i % 2 else 1 + i)
        for i, one in enumerate(waiting)
    ]
    names = [run.worker_id for run in runs] + [f"idle{i}" for i in range(idle)]
    cards = [SharedMemory(f"gpu{i}", Queue.GPU, 80, free=80) for i in range(4)]
    slots = []
    for i, name in enumerate(names):
        memory = cards[i // 2]
        if not name.startswith("idle"):
            memory.taken[name] = sizes[i]
            memory.free = (memory.free or 0) - sizes[i]
            memory.ours += sizes[i]
        slots.append(place(name, memories=[memory], is_idle=name.startswith("idle")))
    chosen = gives_way(waiting, runs, slots)
    by_id = {run.experiment_id: run for run in runs}
    for one in waiting:
        giving = {
            by_id[run].worker_id for run, other in chosen.items() if other == one.experiment_id
        }
        if not giving:
            continue
        for run in runs:
            if run.worker_id in giving:
                assert may_displace(one, run, SLICE_S)
                assert run.owner_id != one.owner_id
        soon_s = 60.0 if one.jumps else SLICE_S / 5
        ends = {run.worker_id for run in runs if run.left_s <= soon_s}
        gone = ends | {by_id[run].worker_id for run in chosen}
        fits = [
            slot
            for slot in slots
            if one.family in slot.families
            and (slot.is_idle or slot.worker_id in gone)
            and slot.room_after(gone) >= one.memory_bytes
        ]
        assert fits
        if len(waiting) == 1:
            without = ends - giving
            assert not any(
                (slot.is_idle or slot.worker_id in without)
                and one.family in slot.families
                and slot.room_after(without) >= one.memory_bytes
                for slot in slots
            )


def lab_with_two_users(database: Database, **settings: Any) -> tuple[SlicedLab, str, str]:
    """A lab with one slot, whose first user runs something long. The second one's run waits."""
    fair_share = FairShare(spare_slots=0, **{"slice_s": SLICE_S, **settings})
    lab = SlicedLab(database, fair_share, cpus=1, look_s=HOUR_S / 4)
    first, second = lab.user("ann"), lab.user("bob")
    (long,) = lab.submit(first, 1, LONG_S)
    lab.run(600.0)
    (other,) = lab.submit(second, 1, LONG_S)
    return lab, long, other


def test_two_users_share_a_slot_slice_by_slice(either: Database) -> None:
    lab, long, other = lab_with_two_users(either)
    lab.run(16 * HOUR_S)
    assert [one for _, _, one in lab.starts[:4]] == [long, other, long, other]
    used = [*lab.used_s().values()]
    assert max(used) - min(used) <= SLICE_S + 1200
    with either.snapshot() as session:
        displaced = session.get_one(Experiment, long)
        assert displaced.lost == 0
        started = session.scalars(select(Attempt.started_at).order_by(Attempt.started_at)).first()
        assert displaced.started_at == started
        outcomes = {*session.scalars(select(Attempt.outcome).where(Attempt.ended_at.is_not(None)))}
        assert outcomes == {"gave_way"}
        assert statistics(session).lost == 0


def test_without_slices_a_run_keeps_its_slot(either: Database) -> None:
    lab, long, _ = lab_with_two_users(either, slice_s=0)
    lab.run(8 * HOUR_S)
    assert [one for _, _, one in lab.starts] == [long]


@pytest.mark.parametrize(
    ("visibility", "to"), [(Visibility.LAB, "bob's digits"), (Visibility.PRIVATE, "bob's run")]
)
def test_the_event_says_to_whom_a_run_gave_way(
    database: Database, visibility: Visibility, to: str
) -> None:
    lab, long, other = lab_with_two_users(database)
    with database.transaction() as session:
        of_it = update(Experiment).where(Experiment.id == other)
        session.execute(of_it.values(name="digits", visibility=visibility))
    lab.run(1.1 * SLICE_S)
    with database.snapshot() as session:
        events = session.scalars(select(Event.data).where(Event.experiment_id == long)).all()
    told = [data for data in events if data.get("reason") == "gave_way"]
    ((status, message),) = [(data["status"], data["message"]) for data in told]
    assert status == "queued"
    assert f" {to} after 4:" in message


def test_a_request_of_the_owner_comes_before_giving_way(either: Database) -> None:
    lab, long, other = lab_with_two_users(either)
    claim = lab.going[long].claim
    with either.transaction() as session:
        giving_way.ask(session, Decision({long: other}, {}))
        assert lease.heartbeat(session, claim, 60.0).gives_way
        of_it = update(Experiment).where(Experiment.id == long)
        session.execute(of_it.values(desired_state=DesiredState.PAUSE))
        assert lease.give_way(session, claim) == Status.PAUSED


def test_a_request_to_give_way_is_withdrawn_if_the_other_is_gone(either: Database) -> None:
    lab, long, other = lab_with_two_users(either)
    with either.transaction() as session:
        giving_way.ask(session, Decision({long: other}, {}))
        session.execute(
            update(Experiment).where(Experiment.id == other).values(status=Status.CANCELLED)
        )
        chosen = giving_way.choose_all(session, lab.fair_share, places(session, WITHIN_S))
        giving_way.ask(session, chosen)
        assert giving_way.asked(session) == Decision({}, {})
        assert not lease.heartbeat(session, lab.going[long].claim, 60.0).gives_way


def test_the_slot_goes_to_the_experiment_to_which_its_run_gave_way(either: Database) -> None:
    """Even if somebody with less usage has submitted meanwhile."""
    lab, long, other = lab_with_two_users(either)
    claim = lab.going[long].claim
    with either.transaction() as session:
        giving_way.ask(session, Decision({long: other}, {}))
    lab.user("carol")
    (newer,) = lab.submit(max(lab.owners.values()) + 1, 1, LONG_S, priority=100)
    with either.transaction() as session:
        lease.give_way(session, claim)
    with either.transaction() as session:
        starts = [
            start_next(session, worker, fair_share=lab.fair_share, within_s=WITHIN_S)
            for worker in ("cpu0", "cpu1")
        ]
    assert [start.experiment_id for start in starts if start is not None] == [other, newer]
    with either.snapshot() as session:
        assert session.scalars(select(Worker.reserved_for)).all() == [None]


def look(lab: SlicedLab) -> giving_way.Decision:
    """Look once, where all runs have computed something."""
    with lab.database.transaction() as session:
        fold(session, lab.fair_share)
        running = update(Experiment).where(Experiment.status == Status.RUNNING)
        session.execute(running.values(progress_at=lab.clock.now))
        return giving_way.choose_all(session, lab.fair_share, places(session, WITHIN_S))


def test_one_run_gives_way_to_a_user_with_one_place_left(either: Database) -> None:
    """Experiments for both kinds of worker wait, and a limit allows one of them."""
    fair_share = FairShare(spare_slots=0, slice_s=SLICE_S)
    lab = SlicedLab(either, fair_share, cpus=1, gpus=1, look_s=1e9)
    limited = lab.user("limited", max_running=1)
    for device in ("cpu", "cuda"):
        lab.submit(lab.user(f"runs on {device}"), 1, LONG_S, device)
        lab.run(60.0)
    lab.run(5 * HOUR_S)
    for device in ("cpu", "cuda"):
        lab.submit(limited, 1, LONG_S, device)
    assert len(look(lab).gives_way_to) == 1


def test_a_run_gives_way_to_the_first_experiment_that_can_have_its_place(either: Database) -> None:
    """A user's first one waits for a family that no worker has which could be freed."""
    lab = SlicedLab(either, FairShare(spare_slots=0, slice_s=SLICE_S), cpus=2, look_s=1e9)
    ann, bob = lab.user("ann"), lab.user("bob", shares=10)
    (long,), _ = lab.submit(ann, 1, LONG_S), lab.submit(bob, 1, LONG_S)
    lab.run(5 * HOUR_S)
    _, (second,) = lab.submit(bob, 1, LONG_S), lab.submit(bob, 1, LONG_S)
    with either.transaction() as session:
        vae = update(Experiment).where(Experiment.id.in_([long, second])).values(family="vae")
        session.execute(vae)
        of_ann = update(Worker).where(Worker.id == lab.going[long].worker)
        session.execute(of_ann.values(families=["vae"]))
    assert look(lab).gives_way_to == {long: second}


def test_on_a_drained_machine_no_run_gives_way(either: Database) -> None:
    lab, _, _ = lab_with_two_users(either)
    with either.transaction() as session:
        session.add(Drain(host="host", hand_back_at=lab.clock.now + 1e9, drained_by="admin"))
    lab.run(2 * SLICE_S)
    assert lab.findings.displaced == 0


@pytest.mark.parametrize("seed", range(2))
def test_a_week_of_a_lab(database: Database, seed: int) -> None:
    """tests.chaos.slices runs a thousand of these."""
    found = week(database, 1000 + seed, slots=2, users=6)
    assert found.findings.useless == found.findings.in_turns == []
    assert found.longest_due_h <= 1.2 * 4 + 1
    assert found.off <= 0.05
    assert found.off_slices <= 2

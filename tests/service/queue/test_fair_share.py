"""Fair share between users, through the real choice with a fake clock."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from service.accounts.models import User
from service.accounts.users import ensure_key
from service.db.engine import Database
from service.experiments.models import Experiment, Usage
from service.fair_share import FairShare
from service.queue.schemas import Share
from service.queue.shares import share_of, standings, submitters
from service.settings import Settings
from service.vocabulary import Status
from tests.support.fairness import starved
from tests.support.ppca_spec import ppca_spec
from tests.support.shared_lab import SharedLab
from tests.support.starting import start_next

JOB_S = 100.0


def test_a_second_user_starts_within_the_length_of_a_run(either: Database) -> None:
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=2)
    flooder, other = 1, lab.user("other")
    lab.submit(flooder, 1000, JOB_S, priority=100)
    lab.run(10.5 * JOB_S)
    (one,) = lab.submit(other, 1, JOB_S, priority=-100)
    asked_at = lab.time
    lab.run(JOB_S)
    (started_at,) = (at for at, _, experiment in lab.starts if experiment == one)
    assert started_at - asked_at <= JOB_S
    assert len([owner for _, owner, _ in lab.starts if owner == flooder]) >= 20


@pytest.mark.slow
def test_use_is_proportional_to_shares(database: Database) -> None:
    """1 : 2 : 4 over ten half-lives, within 5 %."""
    half_life_s = 3000.0
    lab = SharedLab(database, FairShare(half_life_s=half_life_s, advance_s=10))
    users = {lab.user(f"of {n}", shares=n): n for n in (1, 2, 4)}
    for user in users:
        lab.submit(user, 300, half_life_s / 35)
    lab.run(10 * half_life_s)
    used = lab.used_s()
    for user, of in users.items():
        assert used[user] / sum(used.values()) == pytest.approx(of / 7, rel=0.05)


@pytest.mark.slow
def test_shares_of_short_runs_lag_by_one_advance_and_no_more(database: Database) -> None:
    """A run under way is charged `advance_s` at once, however short it is. So the usage of two
    users with 2 and 1 shares deviates from this ratio by one advance at most, and the ratio
    converges."""
    fair_share = FairShare(spare_slots=0)
    lab = SharedLab(database, fair_share, cpus=2)
    double, single = lab.user("double", shares=2), lab.user("single")
    for user in (double, single):
        lab.submit(user, 300, 10.0)
    ratios = []
    for until_s in (60.0, 200.0, 600.0, 2000.0):
        lab.run(until_s - lab.time)
        used = lab.used_s()
        ratios.append(used[double] / used[single])
        assert abs(used[double] / 2 - used[single]) <= fair_share.advance_s
    assert ratios[0] < 1.7
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("queue", ["cpu", "gpu"])
def test_a_user_leaves_a_worker_of_each_kind_to_others(either: Database, queue: str) -> None:
    """A new user starts at once, even if the runs of the first one are long."""
    lab = SharedLab(either, FairShare(), cpus=3, gpus=3)
    first, second = lab.user("first"), lab.user("second")
    device = "cuda" if queue == "gpu" else "cpu"
    lab.submit(first, 5, 1000 * JOB_S, device)
    lab.run(JOB_S)
    assert len(lab.starts) == 2
    lab.submit(second, 5, JOB_S, device)
    lab.run(2.5 * JOB_S)
    assert Counter(owner for _, owner, _ in lab.starts) == {first: 2, second: 3}


@pytest.mark.parametrize(
    ("others", "workers", "spare", "starts"),
    [
        ([], 3, 1, 3),
        ([{"role": "viewer"}], 3, 1, 3),
        ([{"disabled_at": 1.0}], 3, 1, 3),
        ([{}], 3, 1, 2),
        ([{}], 3, 2, 1),
        ([{}], 3, 3, 3),
        ([{}], 3, 0, 3),
        ([{}], 1, 1, 1),
    ],
)
def test_workers_are_reserved_only_if_there_are_other_users(
    database: Database, others: list[dict[str, Any]], workers: int, spare: int, starts: int
) -> None:
    lab = SharedLab(database, FairShare(spare_slots=spare), cpus=workers)
    for columns in others:
        lab.user("other", **columns)
    lab.submit(1, 5, JOB_S)
    lab.run(1)
    assert len(lab.starts) == starts


def test_many_keys_of_one_user_gain_nothing(
    api: TestClient, settings: Settings, database: Database, tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("a", "b", "c", "d")]
    with database.transaction() as session:
        for file in files:
            ensure_key(session, "one" if file.name == "d" else "many", file)
    for file in files:
        headers = {"Authorization": f"Bearer {file.read_text().strip()}"}
        for _ in range(12):
            answer = api.post("/v1/experiments", json={"spec": ppca_spec()}, headers=headers)
            assert answer.status_code == 202
    lab = SharedLab(database, FairShare())
    with database.snapshot() as session:
        names = dict(session.execute(select(User.id, User.name)).all())
        for one in session.scalars(select(Experiment)):
            lab.lengths[one.id], lab.owners[one.id] = JOB_S, one.owner_id
    lab.run(16 * JOB_S - 1)
    assert Counter(names[owner] for _, owner, _ in lab.starts) == {"many": 8, "one": 8}


def test_the_oldest_experiment_is_first_among_users_of_equal_usage(either: Database) -> None:
    lab = SharedLab(either, FairShare())
    users = [lab.user(name) for name in ("a", "b", "c")]
    for user in reversed(users):
        lab.submit(user, 1, JOB_S)
    lab.run()
    assert [owner for _, owner, _ in lab.starts] == users[::-1]


def test_priority_orders_only_the_runs_of_its_user(either: Database) -> None:
    lab = SharedLab(either, FairShare())
    mild, loud = lab.user("mild"), lab.user("loud")
    mine = lab.submit(mild, 2, JOB_S)
    low, high = lab.submit(loud, 1, JOB_S, priority=99), lab.submit(loud, 1, JOB_S, priority=100)
    lab.run()
    assert [one for _, _, one in lab.starts] == [mine[0], *high, mine[1], *low]


def test_a_priority_allowed_by_an_administrator_comes_first(either: Database) -> None:
    lab = SharedLab(either, FairShare())
    jumper = lab.user("jumper", may_jump=True)
    lab.submit(jumper, 5, JOB_S)
    lab.run(4.5 * JOB_S)
    waiting = lab.submit(1, 1, JOB_S)
    urgent = lab.submit(jumper, 1, JOB_S, priority=101)
    lab.run()
    assert [one for _, _, one in lab.starts[-2:]] == [*urgent, *waiting]


def test_running_experiments_count_as_usage(either: Database) -> None:
    """Each of two users gets two of four slots that are free at once. A user with unfinished long
    runs does not count as a user without usage, and does not get the next two slots."""
    lab = SharedLab(either, FairShare(), cpus=4)
    first, second = lab.user("first"), lab.user("second")
    lab.submit(first, 4, 1000 * JOB_S)
    lab.submit(second, 4, JOB_S)
    lab.run(1)
    assert Counter(owner for _, owner, _ in lab.starts) == {first: 2, second: 2}
    lab.run(1.5 * JOB_S)
    assert Counter(owner for _, owner, _ in lab.starts) == {first: 3, second: 3}


def test_runs_that_start_at_the_same_moment_count_as_usage(either: Database) -> None:
    """Four slots that are filled in one transaction are shared by both users."""
    lab = SharedLab(either, FairShare())
    users = [lab.user("first"), lab.user("second")]
    for user in users:
        lab.submit(user, 4, JOB_S)
    with either.transaction() as session:
        claims = [start_next(session, f"w{i}", fair_share=lab.fair_share) for i in range(4)]
    owners = Counter(lab.owners[claim.experiment_id] for claim in claims if claim is not None)
    assert owners == dict.fromkeys(users, 2)


def test_the_limit_of_running_experiments_with_concurrent_starts(either: Database) -> None:
    lab = SharedLab(either, FairShare(max_running=3))
    capped = lab.user("capped", max_running=2)
    for owner in (1, capped):
        lab.submit(owner, 20, JOB_S)

    def start(i: int) -> int | None:
        with either.transaction() as session:
            claim = start_next(session, f"w{i}", fair_share=lab.fair_share)
            return None if claim is None else lab.owners[claim.experiment_id]

    with ThreadPoolExecutor(2) as pool:
        found = Counter(pool.map(start, range(12)))
    assert found == {1: 3, capped: 2, None: 7}


@pytest.mark.parametrize("columns", [{"disabled_at": 1.0}, {"max_running": 0}])
def test_experiments_of_a_held_user_do_not_start(either: Database, columns: dict[str, Any]) -> None:
    """Runs of a disabled user continue; queued experiments wait, whatever their priority. Other
    users are not delayed."""
    lab = SharedLab(either, FairShare(), cpus=2)
    held, other = lab.user("held", may_jump=True), lab.user("other")
    runs = lab.submit(held, 1, JOB_S)
    lab.run(1)

    def change(**values: Any) -> None:
        with either.transaction() as session:
            session.execute(update(User).where(User.id == held).values(**values))

    change(**columns)
    queued = lab.submit(held, 2, JOB_S, priority=101)
    free = lab.submit(other, 3, JOB_S)
    lab.run()
    assert [one for _, _, one in lab.starts] == [*runs, *free]
    assert set(lab.waiting()) == set(queued)
    with either.snapshot() as session:
        assert session.get_one(Experiment, runs[0]).status == Status.SUCCEEDED
    change(**dict.fromkeys(columns, None))
    lab.run()
    assert {one for _, _, one in lab.starts[4:]} == set(queued)


def test_the_limit_of_submitted_experiments_with_concurrent_requests(either: Database) -> None:
    lab = SharedLab(either, FairShare(max_submitted=3))

    def submit(_: int) -> str:
        try:
            lab.submit(1, 1, JOB_S)
        except Exception as refusal:
            return str(refusal)
        return "accepted"

    with ThreadPoolExecutor(2) as pool:
        found = Counter(pool.map(submit, range(8)))
    refusal = "3 of your experiments have not ended, and your limit is 3"
    assert found == {"accepted": 3, refusal: 5}


def test_the_last_slot_is_reserved_for_an_earlier_gpu_run(either: Database) -> None:
    """A free CPU slot is filled from behind only where that delays no GPU run."""
    lab = SharedLab(either, FairShare(), cpus=2, gpus=1)
    other, capped = lab.user("other"), lab.user("capped", max_running=2)
    lab.submit(other, 1, JOB_S, device="cuda")
    lab.run(1)
    (on_gpu,) = lab.submit(capped, 1, JOB_S, device="cuda")
    lab.submit(capped, 3, 10 * JOB_S)
    lab.run(JOB_S)
    started = {one: at for at, _, one in lab.starts}
    assert started[on_gpu] == JOB_S
    assert len(started) == 3  # one CPU run went beside it


def shares_of(lab: SharedLab) -> dict[int, Share]:
    with lab.database.snapshot() as session:
        everyone, who = standings(session, lab.fair_share), submitters(session)
    return {one.owner_id: share_of(one.owner_id, everyone, who) for one in everyone}


def test_a_share_has_the_terms_of_slurm(either: Database) -> None:
    lab = SharedLab(either, FairShare(), cpus=1)
    heavy, light = lab.user("heavy", shares=3), lab.user("light")
    lab.submit(heavy, 2, JOB_S)
    lab.submit(light, 1, JOB_S)
    lab.run()
    found = shares_of(lab)
    assert (found[heavy].raw_shares, found[heavy].norm_shares) == (3, 3 / 4)
    assert found[heavy].raw_usage == pytest.approx(200, rel=1e-3)
    assert found[heavy].effectv_usage == pytest.approx(2 / 3, rel=1e-3)
    assert found[heavy].level_fs == pytest.approx(9 / 8, rel=1e-3)
    assert found[1].level_fs is None
    assert {one: share.fair_share for one, share in found.items()} == {1: 1, heavy: 1, light: 0.5}


def test_users_that_never_submit_have_no_part_in_the_shares_of_others(either: Database) -> None:
    """Neither members, nor viewers, nor users that were disabled. A member reads the share that it
    would have. What a disabled user has used counts as use, and its shares do not."""
    lab = SharedLab(either, FairShare(), cpus=1)
    double, single, gone = lab.user("double", shares=2), lab.user("single"), lab.user("gone")
    for owner in (double, single, gone):
        lab.submit(owner, 1, JOB_S)
    lab.run()
    lab.submit(new := lab.user("waits"), 1, JOB_S)
    screen, member = lab.user("screen", role="viewer"), lab.user("member")
    with either.transaction() as session:
        session.get_one(User, gone).disabled_at = 1.0
    found = shares_of(lab)
    assert {one: share.norm_shares for one, share in found.items()} == {
        double: 2 / 4, single: 1 / 4, new: 1 / 4,
        1: 1 / 5, member: 1 / 5,
        screen: 0, gone: 0,
    }  # fmt: skip
    assert found[gone].effectv_usage == pytest.approx(1 / 3, rel=1e-3)
    ranks = {one: found[one].fair_share for one in (new, double, single, screen)}
    assert ranks == {new: 1, double: 2 / 3, single: 1 / 3, screen: 0}


@pytest.mark.parametrize(("slots", "starts"), [(3, (1, 1, 1)), (4, (2, 1, 1)), (8, (4, 2, 2))])
def test_slots_that_are_free_at_once_are_divided_by_the_shares(
    database: Database, slots: int, starts: tuple[int, ...]
) -> None:
    """docs/lab.md says so. Users with 2, 1 and 1 shares have one each of three slots."""
    lab = SharedLab(database, FairShare(spare_slots=0), cpus=slots)
    users = [lab.user("double", shares=2), lab.user("second"), lab.user("third")]
    for user in users:
        lab.submit(user, 100, JOB_S)
    lab.run(0)
    counts = Counter(owner for _, owner, _ in lab.starts)
    assert tuple(counts[user] for user in users) == starts


def test_short_runs_on_few_slots_show_the_shares_after_a_minute(database: Database) -> None:
    lab = SharedLab(database, FairShare(spare_slots=0), cpus=3)
    users = [lab.user("double", shares=2), lab.user("second"), lab.user("third")]
    for user in users:
        lab.submit(user, 100, 10.0)
    lab.run(60.0)
    early = lab.used_s()
    assert len(set(early.values())) == 1
    lab.run(240.0)
    later = {user: used_s - early[user] for user, used_s in lab.used_s().items()}
    assert later[users[0]] / later[users[1]] == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize("seed", range(2))
def test_no_user_starves(seed: int, database: Database) -> None:
    """tests.chaos.fairness runs a thousand of these."""
    assert starved(database, seed) == []


def test_a_priority_above_100_needs_permission(api: TestClient, database: Database) -> None:
    body = {"spec": ppca_spec(), "priority": 101}
    refused = api.post("/v1/experiments", json=body)
    assert (refused.status_code, refused.json()["reason"]) == (403, "may_not_jump")
    made = f"/v1/experiments/{api.post('/v1/experiments', json={'spec': ppca_spec()}).json()['id']}"
    changed = api.patch(made, json={"priority": 101})
    assert (changed.status_code, changed.json()["reason"]) == (403, "may_not_jump")
    with database.transaction() as session:
        session.execute(update(User).values(may_jump=True))
    assert api.post("/v1/experiments", json=body).status_code == 202
    assert api.patch(made, json={"priority": 101}).status_code == 200


def test_submissions_beyond_the_limit_get_409(api: TestClient, database: Database) -> None:
    with database.transaction() as session:
        session.execute(update(User).values(max_submitted=2))
    key = {"Idempotency-Key": "k"}
    made = [
        api.post("/v1/experiments", json={"spec": ppca_spec()}, headers=headers)
        for headers in (key, {})
    ]
    refused = api.post("/v1/experiments", json={"spec": ppca_spec()})
    assert (refused.status_code, refused.json()["reason"]) == (409, "limit_reached")
    assert refused.json()["detail"] == "2 of your experiments have not ended, and your limit is 2"
    again = api.post("/v1/experiments", json={"spec": ppca_spec()}, headers=key)
    assert (again.status_code, again.json()["id"]) == (202, made[0].json()["id"])
    api.post(f"/v1/experiments/{made[1].json()['id']}:cancel")
    retried = api.post(f"/v1/experiments/{made[1].json()['id']}:retry")
    assert retried.status_code == 202
    assert api.post(f"/v1/experiments/{made[1].json()['id']}:retry").status_code == 409


def test_the_queue_of_a_user(api: TestClient, database: Database) -> None:
    with database.transaction() as session:
        session.execute(update(User).values(max_running=2))
    for priority in (0, 5):
        api.post("/v1/experiments", json={"spec": ppca_spec(), "priority": priority})
    found = api.get("/v1/queue").json()
    assert [one["priority"] for one in found["items"]] == [5, 0]
    assert (found["running"], found["max_running"], found["submitted"]) == (0, 2, 2)
    assert found["share"]["norm_shares"] == 1
    assert found["share"]["fair_share"] == 1


def test_usage_is_listed_by_the_heaviest_user_first(
    api: TestClient, database: Database, settings: Settings
) -> None:
    with database.transaction() as session:
        for name, charged_s in (("ann", 30.0), ("bob", 60.0)):
            user, _ = ensure_key(session, name, settings.store / name)
            session.add(Usage(owner_id=user.id, charged_s=charged_s, as_of=time.time()))
    items = api.get("/v1/usage").json()["items"]
    assert [one["name"] for one in items] == ["bob", "ann", "local"]
    assert [round(one["share"]["effectv_usage"], 2) for one in items] == [0.67, 0.33, 0.0]
    assert {one["running"] for one in items} == {0}

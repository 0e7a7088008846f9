"""Events of an experiment as pages: in order, each once, with ids from which the next page
continues. The present state of several experiments."""

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.queue import lease
from service.queue.lease import Claim, FailureCause
from service.records.recording import Batch, record
from service.vocabulary import Status
from tests.support.attempts import claim_next, claimed, submitted
from tests.support.callers import bearer, database_of, member
from tests.support.ppca_spec import ppca_spec
from tests.support.stored import change


def log(seq: int) -> dict[str, Any]:
    return {"seq": seq, "record": "log", "level": "info", "message": f"line {seq}"}


def point(seq: int, series: str = "score") -> dict[str, Any]:
    return {"seq": seq, "record": "point", "series": series, "labels": {}, "x": seq,
            "value": -1.0, "std_err": 0.1, "n": 1}  # fmt: skip


def progress(done: int) -> dict[str, Any]:
    return {"seq": None, "record": "progress", "done": done, "total": 9, "unit": "masks"}


def recorded(api: TestClient, claim: Claim, *records: dict[str, Any]) -> None:
    batch = Batch()
    for one in records:
        batch.add(one)
    with database_of(api).transaction() as session:
        record(session, claim, batch, 60)


def finished(api: TestClient, claim: Claim) -> None:
    with database_of(api).transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)


def page(api: TestClient, url: str, **params: Any) -> dict[str, Any]:
    answer = api.get(url, params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def kinds(events: dict[str, Any]) -> list[str]:
    return [one["data"].get("status", one["kind"]) for one in events["items"]]


def xs(events: dict[str, Any]) -> list[float]:
    """Return the x values of all points."""
    return [
        x
        for one in events["items"]
        if one["kind"] == "points"
        for series in one["data"]["series"]
        for x in series["x"]
    ]


WHOLE = ["queued", "running", "log", "log", "progress", "points", "succeeded"]


def test_all_events_of_an_experiment(admin: TestClient) -> None:
    claim = claimed(database_of(admin))
    url = f"/v1/experiments/{claim.experiment_id}/events"
    recorded(admin, claim, log(1), point(2), log(3), point(4), progress(7))
    then = page(admin, url)
    assert kinds(then) == WHOLE[:-1]
    assert then["ended"] is False
    assert [one["id"] for one in then["items"]][-1] == then["last_id"]
    assert then["items"][1]["data"] == {
        "status": "running", "attempt": 1, "worker": "w", "terminal": False
    }  # fmt: skip
    assert then["items"][2]["data"] == {"level": "info", "message": "line 1", "seq": 1}
    assert then["items"][4]["data"] == {"done": 7, "total": 9, "unit": "masks"}
    assert then["items"][5]["data"]["last_seq"] == 4
    assert xs(then) == [2, 4]
    finished(admin, claim)
    whole = page(admin, url)
    assert kinds(whole) == WHOLE
    assert whole["items"][-1]["data"]["terminal"] is True
    assert whole["ended"] is True
    rest = page(admin, url, after=then["last_id"])
    assert rest["items"] == whole["items"][-1:]


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_events_after_each_id(api: TestClient, limit: int) -> None:
    """Check each event as the last one read, and several page lengths."""
    claim = claimed(database_of(api))
    url = f"/v1/experiments/{claim.experiment_id}/events"
    recorded(api, claim, log(1), point(2), log(3), point(4), progress(7))
    finished(api, claim)
    whole = page(api, url)["items"]
    assert len({one["id"] for one in whole}) == len(WHOLE)
    for i, one in enumerate(whole):
        after, found, more = one["id"], [], True
        while more:
            part = page(api, url, after=after, limit=limit)
            after, more = part["last_id"], part["more"]
            found += part["items"]
        assert found == whole[i + 1 :]


def test_points_come_once_after_a_run_returned_to_its_checkpoint(admin: TestClient) -> None:
    """The run returns to its checkpoint and records again the points that were already read."""
    database = database_of(admin)
    claim = claimed(database)
    url = f"/v1/experiments/{claim.experiment_id}/events"
    checkpoint = {"seq": None, "record": "checkpoint", "file": "1", "sha256": "0", "after": 2}
    recorded(admin, claim, point(1), point(2), checkpoint)
    recorded(admin, claim, point(3), point(4))
    first = page(admin, url)
    assert xs(first) == [1, 2, 3, 4]
    with database.transaction() as session:
        lease.release(session, claim)
    again = claim_next(database)
    assert again.after_seq == 2
    recorded(admin, again, point(3))
    second = page(admin, url, after=first["last_id"])
    assert kinds(second) == ["queued", "running"]
    recorded(admin, again, point(4), point(5))
    assert xs(page(admin, url, after=second["last_id"])) == [5]
    assert xs(page(admin, url, after=first["last_id"])) == [5]


def test_only_the_requested_kinds(api: TestClient) -> None:
    claim = claimed(database_of(api))
    url = f"/v1/experiments/{claim.experiment_id}/events"
    recorded(api, claim, log(1), point(2), progress(7))
    for kind in ("log", "progress", "points"):
        assert kinds(page(api, url, kind=kind)) == [kind]
    assert kinds(page(api, url, kind=["log", "status"])) == WHOLE[:3]
    finished(api, claim)
    assert page(api, url, kind="log")["ended"] is True


def test_from_now_on(api: TestClient) -> None:
    claim = claimed(database_of(api))
    recorded(api, claim, log(1), point(2))
    url = f"/v1/experiments/{claim.experiment_id}/events"
    now = page(api, url, after="now", kind=["status", "log"])
    assert now["items"] == []
    recorded(api, claim, log(3), point(4))
    assert kinds(page(api, url, after=now["last_id"], kind="log")) == ["log"]


def test_too_many_series_are_reported(api: TestClient) -> None:
    claim = claimed(database_of(api))
    names = [f"series_{i}" for i in range(5100)]
    recorded(api, claim, *(point(i, name) for i, name in enumerate(names * 2, 1)))
    found = page(api, f"/v1/experiments/{claim.experiment_id}/events", kind="points")["items"]
    assert [one["data"] for one in found] == [
        {"last_seq": 2 * len(names), "after": 0, "series": None}
    ]


INVALID = ["x", "1-2", "-1", "1-2-9999999999", "9" * 19, "1-2-3-4", "٣", f"1-{10**18}-1"]


@pytest.mark.parametrize("after", INVALID)
def test_invalid_ids_are_refused(api: TestClient, after: str) -> None:
    url = f"/v1/experiments/{submitted(database_of(api))}/events"
    for how, pointer in (
        ({"params": {"after": after}}, "/query/after"),
        ({"headers": {"Last-Event-ID": after.encode()}}, "/header/last-event-id"),
    ):
        answer = api.get(url, **how)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == pointer
        assert "the `id` of an event" in answer.json()["errors"][0]["detail"]


def test_several_experiments_have_no_position(api: TestClient) -> None:
    """A script that still sends one is told which parameter, and what it may send."""
    sweep = api.post("/v1/sweeps", json={"spec": ppca_spec(), "grid": {"seeds": [[4]]}}).json()
    for url in ("/v1/events", sweep["urls"]["events"]):
        for accept in ("application/json", "text/event-stream"):
            answer = api.get(url, params={"after": "1"}, headers={"Accept": accept})
            assert answer.status_code == 422
            (problem,) = answer.json()["errors"]
            assert problem["pointer"] == "/query/after"
            assert "kind" in problem["detail"]


def statuses(state: dict[str, Any]) -> dict[str, str]:
    """Return the status of each experiment in a state, which reports each once."""
    events = [event for event in state["items"] if event["kind"] == "status"]
    by_id = {event["experiment_id"]: event["data"]["status"] for event in events}
    assert len(by_id) == len(events)
    return by_id


def test_the_state_of_the_callers_experiments(admin: TestClient) -> None:
    """It contains running experiments and recent ends, and no experiments of other users, even if
    shared."""
    database = database_of(admin)
    theirs = bearer(member(admin)["key"])
    body = {"spec": ppca_spec(), "visibility": "lab", "priority": 9, "cache": False}
    other = admin.post("/v1/experiments", json=body, headers=theirs).json()["id"]
    assert claim_next(database).experiment_id == other
    ended, ended_before, running = (claimed(database) for _ in range(3))
    submitted(database)
    finished(admin, ended)
    finished(admin, ended_before)
    change(database, ended_before.experiment_id, finished_at=time.time() - 4000)
    recorded(admin, running, point(1), progress(5))
    state = page(admin, "/v1/events")
    assert statuses(state) == {
        ended.experiment_id: "succeeded", running.experiment_id: "running"
    }  # fmt: skip
    assert kinds(state) == ["succeeded", "running", "progress", "points"]
    assert state["ended"] is False
    assert kinds(page(admin, "/v1/events", kind="points")) == ["points"]
    assert statuses(admin.get("/v1/events", headers=theirs).json()) == {other: "running"}


def test_the_state_of_a_sweep(admin: TestClient) -> None:
    """The status of its experiments, with the end of each, and notices of running ones."""
    database = database_of(admin)
    submitted(database)
    body = {"spec": ppca_spec(), "grid": {"seeds": [[4], [44]]}, "priority": 5, "cache": False}
    made = admin.post("/v1/sweeps", json=body).json()
    url = made["urls"]["events"]
    assert kinds(page(admin, url)) == ["queued", "queued"]
    first = claim_next(database)
    recorded(admin, first, point(1), progress(5))
    state = page(admin, url)
    assert kinds(state) == ["running", "queued", "progress", "points"]
    assert state["items"][-1]["data"] == {"last_seq": 1, "series": None}
    with database.transaction() as session:
        lease.finish(session, first, Status.FAILED, FailureCause("invalid", "no such file"))
    state = page(admin, url)
    assert (kinds(state), state["ended"]) == (["failed", "queued"], False)
    failed, queued = state["items"]
    assert failed["data"]["failure"] == {"kind": "invalid", "message": "no such file"}
    assert failed["data"]["terminal"] is True
    assert failed["at"] == admin.get(f"/v1/experiments/{first.experiment_id}").json()["finished_at"]
    assert (queued["data"]["terminal"], queued["at"]) == (False, None)
    finished(admin, claim_next(database))
    assert (kinds(page(admin, url)), page(admin, url)["ended"]) == (["failed", "succeeded"], True)


def test_a_sweeps_experiments_that_are_not_shared_are_left_out(api: TestClient) -> None:
    theirs = bearer(member(api)["key"])
    body = {"spec": ppca_spec(), "grid": {"seeds": [[4], [44]]}, "visibility": "lab"}
    made = api.post("/v1/sweeps", json=body).json()
    mine = page(api, made["urls"]["events"])["items"]
    hidden = mine[0]["experiment_id"]
    api.patch(f"/v1/experiments/{hidden}", json={"visibility": "private"})
    found = api.get(made["urls"]["events"], headers=theirs).json()["items"]
    assert found == mine[1:]
    api.delete(f"/v1/experiments/{mine[1]['experiment_id']}")
    assert page(api, made["urls"]["events"])["items"] == mine[:1]


def test_an_id_that_is_gone_is_not_given_again(admin: TestClient) -> None:
    """The line of a log was deleted by a restarted run; SQLite too does not reuse its id."""
    database = database_of(admin)
    claim = claimed(database)
    url = f"/v1/experiments/{claim.experiment_id}/events"
    recorded(admin, claim, log(1))
    read = page(admin, url)
    with database.transaction() as session:
        lease.forget_records(session, claim.experiment_id)
        lease.release(session, claim)
    assert kinds(page(admin, url, after=read["last_id"])) == ["queued"]


def test_points_and_progress_from_now_on(api: TestClient) -> None:
    claim = claimed(database_of(api))
    recorded(api, claim, point(1), point(2), progress(2))
    url = f"/v1/experiments/{claim.experiment_id}/events"
    now = page(api, url, after="now")
    assert now["items"] == []
    recorded(api, claim, point(3), progress(3))
    later = page(api, url, after=now["last_id"])
    assert kinds(later) == ["progress", "points"]
    assert xs(later) == [3]

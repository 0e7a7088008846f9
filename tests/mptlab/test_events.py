"""Event streams of a real service in the client, which end or are cut off."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from mptlab import Client, NoAnswer, Refused, serve
from service.db.engine import Database
from service.queue import lease, states
from service.vocabulary import DesiredState, Status
from tests.mptlab.conftest import Killable
from tests.support.answers import Answers
from tests.support.attempts import claim_next
from tests.support.commands import mpt_here as mpt
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until


def test_a_sweep_by_one_stream(client: Client) -> None:
    sweep = client.sweep(ppca_spec(), {"data.n": [20, 30], "seeds": [[1], [2]]}, cache=False)
    events = [*sweep.events(kind=["status"])]
    assert {event["kind"] for event in events} == {"status"}
    ended = Counter(event["experiment_id"] for event in events if event["data"]["terminal"])
    assert ended == {row["experiment_id"]: 1 for row in sweep.table()}


def test_an_experiment_with_its_points(client: Client) -> None:
    run = client.experiments.create(ppca_spec(), cache=False)
    events = [*run.events()]
    assert [event["data"]["status"] for event in events if event["kind"] == "status"][-1] == (
        "succeeded"
    )
    told = [series for event in events if event["kind"] == "points"
            for series in event["data"]["series"]]  # fmt: skip
    assert sum(len(one["x"]) for one in told) == sum(len(one["x"]) for one in run.curves())
    assert [*run.events(after=events[-1]["id"])] == []
    (line,) = run.logs()
    assert line["message"].startswith("torch ")
    assert run.logs("warning") == []


def test_the_log_as_a_command(client: Client, environment: dict[str, str]) -> None:
    run = client.experiments.create(ppca_spec(), wait=True, progress=False)
    for options in ("", "--follow", "-f --level info"):
        code, output, error = mpt(environment, "logs", run.id, *options.split())
        assert code == 0, error
        assert " info    torch " in output
        assert len(output.splitlines()) == 1
    assert json.loads(mpt(environment, "logs", run.id, "--json")[1])["level"] == "info"
    for options in ("--level warning", "--level warning -f"):
        assert mpt(environment, "logs", run.id, *options.split())[1] == ""


@pytest.mark.slow
def test_a_stream_continues_after_the_server_was_killed(
    killable: Killable, database: Database
) -> None:
    run = killable.client.experiments.create(ppca_spec(), cache=False)

    def ask(*desired: DesiredState) -> None:
        with database.transaction() as session:
            for one in desired:
                states.request(session, run.id, one)

    statuses = (event["data"]["status"] for event in run.events())
    assert next(statuses) == "queued"
    ask(DesiredState.PAUSE)
    assert next(statuses) == "paused"
    killable.kill()
    with ThreadPoolExecutor(1) as beside:
        rest = beside.submit(list, statuses)
        killable.wait_until_missed()
        ask(DesiredState.RUN, DesiredState.CANCEL)
        killable.start()
        assert rest.result(60) == ["queued", "cancelled"]


@pytest.mark.parametrize("killable", ["settings", "lab"], indirect=True)
def test_the_recipe_for_a_sweep_survives_a_restart(killable: Killable) -> None:
    """The recipe of docs/client.md gets each end once. The service is killed between two ends, the
    third point ends while it is away, and the fourth afterwards."""
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    recipe = page[page.index("succeeded = []") :].partition("\n\n")[0]
    grid = {"seeds": [[seed] for seed in range(4)]}
    sweep = killable.client.sweep(ppca_spec(), grid, cache=False)
    names: dict[str, Any] = {"sweep": sweep}
    database, ended = Database(killable.lab.settings.url), []

    def end_one() -> None:
        claim = claim_next(database)
        with database.transaction() as session:
            lease.finish(session, claim, Status.SUCCEEDED)
        ended.append(claim.experiment_id)

    with ThreadPoolExecutor(1) as beside:
        following = beside.submit(exec, recipe, names)
        for _ in range(2):
            end_one()
            wait_until(lambda: names.get("succeeded") == ended, what="the end in the script")
        killable.kill()
        killable.wait_until_missed()
        end_one()
        killable.start()
        end_one()
        following.result(60)
    assert sorted(names["succeeded"]) == sorted(ended)


def test_a_stream_of_a_missing_experiment_is_refused(client: Client) -> None:
    with pytest.raises(Refused, match="no experiment of this id"):
        next(client.events_of("0" * 32))


def test_a_stream_that_loses_access_says_so(client: Client, environment: dict[str, str]) -> None:
    key = client.add_key("local")
    with Client(client.url, key["key"]) as other:
        events = other.events()
        run = client.experiments.create(ppca_spec(), cache=False)
        assert any(event["experiment_id"] == run.id for event in events)
        client.revoke_key("local", key["id"])
        with pytest.raises(Refused, match="may no longer read these events"):
            list(events)


def test_a_stream_waits_for_a_server_that_starts_late() -> None:
    with Client(f"http://127.0.0.1:{serve.free_port()}", "key", for_s=0.0) as client:
        with pytest.raises(NoAnswer):
            next(client.events())


EVENT_7 = {"id": "7", "kind": "log"}
EVENT = f"event: log\nid: 7\ndata: {json.dumps(EVENT_7)}\n\n"
END = 'event: end\nid: 7\ndata: {"reason": "ended"}\n\n'


def stream(content: str) -> httpx.Response:
    """An answer that is cut off, unless its content has an end."""
    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text=content)


def test_an_answer_that_is_not_a_stream_is_not_retried(answers: Answers) -> None:
    with answers.client() as client, pytest.raises(Refused, match="cannot read events from"):
        next(client.events())
    assert len(answers.seen) == 1


def test_a_ping_is_not_an_event(answers: Answers) -> None:
    answers.given = [stream(": ping\n\n" + EVENT + ": ping\n\n" + END)]
    with answers.client() as client:
        assert [*client.events()] == [EVENT_7]


def test_a_stream_from_now_keeps_its_first_position(answers: Answers) -> None:
    """The position is kept when a stream is reopened that was cut off before its first event."""
    page = httpx.Response(200, json={"items": [], "last_id": "5"})
    answers.given = [page, stream(": ping\n\n"), stream(EVENT + END)]
    with answers.client() as client:
        assert [*client.events_of("a", after="now")] == [EVENT_7]
    assert [request.url.params["after"] for request in answers.seen] == ["now", "5", "5"]


def status_event(experiment_id: str, status: str) -> str:
    event = {"kind": "status", "experiment_id": experiment_id, "data": {"status": status}}
    return f"event: status\ndata: {json.dumps(event)}\n\n"


def test_the_state_after_a_reconnect_repeats_no_status(answers: Answers) -> None:
    """The service begins each stream with the status of all experiments."""
    before = [("a", "queued"), ("b", "queued"), ("a", "running"), ("a", "succeeded")]
    after = [("a", "succeeded"), ("b", "failed"), ("c", "queued")]
    first, second = ("".join(status_event(*status) for status in part) for part in (before, after))
    answers.given = [stream(first), stream(second + END)]
    with answers.client() as client:
        events = [(event["experiment_id"], event["data"]["status"]) for event in client.events()]
    assert events == [*before, ("b", "failed"), ("c", "queued")]

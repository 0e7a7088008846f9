"""Event streams of a real server: every event arrives once, at permitted listeners, until the
end."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.accounts.models import ApiKey, Project
from service.db.engine import Database
from service.events import changes, poller
from service.events import routes as streams
from service.events.changes import Changes, Look
from service.queue import lease, states
from service.queue.lease import Claim
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import DesiredState, Role, Scope, Status
from tests.support.attempts import claim_next, claimed, submitted
from tests.support.callers import bearer
from tests.support.filled_lab import key_of
from tests.support.forks import fork
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, wait_until
from tests.support.servers import PostgreSQL
from tests.support.starting import start_next
from tests.support.stored import change
from tests.support.streams import Told, served, stream

MOST = 4


@pytest.fixture
def client(place: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(poller, "MAX_USER_STREAMS", MOST)
    with served(place) as client:
        yield client


@pytest.fixture
def database(place: Settings) -> Database:
    return Database(place.url)


def recorded(database: Database, claim: Claim, *seqs: int) -> None:
    """Commit a point and a progress record for each number."""
    batch = Batch()
    for seq in seqs:
        batch.add({"seq": seq, "record": "point", "series": "score", "labels": {}, "x": seq,
                   "value": -1.0, "std_err": 0.1, "n": 1})  # fmt: skip
        batch.add({"seq": None, "record": "progress", "done": seq, "total": 9, "unit": "masks"})
    with database.transaction() as session:
        record(session, claim, batch, 60)


def finished(database: Database, claim: Claim) -> None:
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)


def of_kind(events: Iterator[Told], *kinds: str) -> Iterator[Told]:
    return (one for one in events if one.kind in kinds)


def xs(told: Told) -> Any:
    return told.data["series"][0]["x"]


def test_a_live_curve_by_one_stream(client: httpx.Client, database: Database) -> None:
    """Read it to its end; the stream is cut off in the middle and resumed."""
    claim = claimed(database)
    url = f"/v1/experiments/{claim.experiment_id}/events"
    with stream(client, url) as events:
        told = [next(events) for _ in range(2)]
        assert [one.data["status"] for one in told] == ["queued", "running"]
        recorded(database, claim, 1, 2)
        progress, points = next(events), next(events)
        assert progress.data == {"done": 2, "total": 9, "unit": "masks"}
        assert (xs(points), points.data["last_seq"]) == ([1, 2], 2)
    recorded(database, claim, 3)
    with stream(client, url, headers={"Last-Event-ID": points.id}) as events:
        recorded(database, claim, 4)
        found: list[int] = []
        while found[-1:] != [4]:
            found += xs(next(of_kind(events, "points")))
        assert found == [3, 4]
        recorded(database, claim, 5)
        finished(database, claim)
        rest = [*events]  # the server closes
    assert [one.kind for one in rest][-2:] == ["status", "end"]
    assert [x for one in of_kind(iter(rest), "points") for x in xs(one)] == [5]
    assert rest[-2].data["status"] == "succeeded"
    assert rest[-1].body == {"reason": "ended"}
    assert rest[-1].id == rest[-2].id
    pages = client.get(url, params={"after": points.id}).json()["items"]
    assert pages[-1] == rest[-2].body


def new_sweep(client: httpx.Client, points: int, **beside: Any) -> dict[str, Any]:
    grid = {"seeds": [[seed] for seed in range(points)]}
    body = {"spec": ppca_spec(), "grid": grid, "cache": False, **beside}
    sweep: dict[str, Any] = client.post("/v1/sweeps", json=body).json()
    return sweep


def ends(events: Iterable[Told]) -> list[tuple[str, str]]:
    """Return the ended experiments and their status, in order."""
    return [
        (event.body["experiment_id"], event.data["status"])
        for event in of_kind(iter(events), "status")
        if event.data["terminal"]
    ]


def test_a_sweep_by_one_stream(client: httpx.Client, database: Database) -> None:
    """A stream begins with the state of the sweep, so a second one continues where the first was
    cut off."""
    url = new_sweep(client, 2)["urls"]["events"]
    with stream(client, url, params={"kind": ["status", "points"]}) as events:
        assert [next(events).data["status"] for _ in range(2)] == ["queued", "queued"]
        first = claim_next(database)
        assert next(events).data["status"] == "running"
        recorded(database, first, 1)
        points = next(events)
        assert (points.body["experiment_id"], points.data["last_seq"]) == (first.experiment_id, 1)
        finished(database, first)
        last = next(one for one in events if one.data.get("terminal"))
        assert last.data["status"] == "succeeded"
    second = claim_next(database)
    with stream(client, url, params={"kind": "status"}) as events:
        state = [next(events) for _ in range(2)]
        assert [one.data["status"] for one in state] == ["succeeded", "running"]
        finished(database, second)
        *changes, end = events
    assert ends(changes) == [(second.experiment_id, "succeeded")]
    assert end.body == {"reason": "ended"}
    with stream(client, url, params={"kind": "status"}) as events:
        *state, end = events
    assert ends(state) == [(one.experiment_id, "succeeded") for one in (first, second)]
    assert end.body == {"reason": "ended"}


def test_all_events_of_the_caller_by_one_stream(client: httpx.Client, database: Database) -> None:
    before = submitted(database)
    with stream(client, "/v1/events") as events:
        claim = claim_next(database)
        assert next(events).data["status"] == "running"
        recorded(database, claim, 1)
        assert [next(events).kind for _ in range(2)] == ["progress", "points"]
        finished(database, claim)
        assert next(events).data["status"] == "succeeded"
        later = client.post("/v1/experiments", json={"spec": ppca_spec(), "cache": False}).json()
        assert next(events).body["experiment_id"] == later["id"] != before


@contextmanager
def busy_transaction(server: PostgreSQL, lab: Settings) -> Iterator[None]:
    """A transaction of another program in the lab's database, which has locked rows and has written
    an event that is not committed."""
    other = submitted(Database(lab.url))
    with psycopg.connect(server.address(lab.url.rpartition("/")[2])) as connection:
        connection.execute("SELECT 1 FROM experiments WHERE id = %s FOR UPDATE", [other])
        insert = "INSERT INTO events (experiment_id, at, kind, data) VALUES (%s, 0, 'log', '{}')"
        connection.execute(insert, [other])
        yield
        connection.rollback()


@contextmanager
def foreign_transaction(server: PostgreSQL, lab: Settings) -> Iterator[None]:
    """A transaction in another database of the same server."""
    with psycopg.connect(server.address("postgres")) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield


@pytest.mark.parametrize("opened", [busy_transaction, foreign_transaction])
def test_an_open_transaction_stops_no_stream(
    opened: Callable[[PostgreSQL, Settings], AbstractContextManager[None]],
    lab: Settings,
    postgresql: PostgreSQL,
) -> None:
    database = Database(lab.url)
    with served(lab) as client, opened(postgresql, lab):
        sweep = new_sweep(client, 1, priority=9)
        with (
            stream(client, sweep["urls"]["events"]) as of_sweep,
            stream(client, "/v1/events") as of_user,
        ):
            assert next(of_sweep).data["status"] == "queued"
            finished(database, claim_next(database))
            assert len(ends(of_sweep)) == 1
            assert next(event for event in of_user if event.data.get("terminal"))


@pytest.mark.parametrize("window_s", [10.0, 0.0])
def test_an_end_that_is_committed_late_is_delivered_once(
    window_s: float, lab: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got its id before the others, and is committed after them: soon, or so late that only the
    number of ended experiments shows that it was missed. Then the stream contains the state again,
    with the ends that it has already delivered."""
    monkeypatch.setattr(changes, "WINDOW_S", window_s)
    monkeypatch.setattr(changes, "CHECK_S", 0.0)
    database = Database(lab.url, connections=4)
    with served(lab) as client:
        sweep = new_sweep(client, 4)
        with stream(client, sweep["urls"]["events"], params={"kind": "status"}) as events:
            late, *others = [next(events).body["experiment_id"] for _ in range(4)]
            with Session(database.engine) as slow, slow.begin():
                states.request(slow, late, DesiredState.CANCEL)
                slow.flush()
                for other in others[:2]:
                    with database.transaction() as session:
                        states.request(session, other, DesiredState.CANCEL)
                    assert ends([next(events)]) == [(other, "cancelled")]
            if window_s:
                assert ends([next(events)]) == [(late, "cancelled")]
            else:
                assert ends([next(events) for _ in range(4)]) == [
                    (one, "cancelled") for one in (late, *others[:2])
                ]
            with database.transaction() as session:
                states.request(session, others[2], DesiredState.CANCEL)
            *last, end = events
        assert ends(last) == [(others[2], "cancelled")]
        assert end.body == {"reason": "ended"}


def test_a_listener_that_does_not_read_gets_the_state(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of its events, so that they need no memory meanwhile."""
    monkeypatch.setattr(poller, "MAX_PENDING", 2)
    sweep = new_sweep(client, 3)
    with stream(client, sweep["urls"]["events"]) as events:
        assert [next(events).data["status"] for _ in range(3)] == 3 * ["queued"]
        with database.transaction() as session:
            for _ in range(3):
                start_next(session, "w", lease_s=60)
        state = {"status": "running", "terminal": False}  # an event names the attempt, too
        assert [next(events).data for _ in range(3)] == 3 * [state]


def revoke(database: Database, key: str) -> None:
    with database.transaction() as session:
        session.get_one(ApiKey, key.split("_")[1]).revoked_at = 1.0


def test_a_stream_that_loses_permission_says_so(client: httpx.Client, database: Database) -> None:
    """A key that is revoked or has lost its scope, an experiment that is no longer shared, and a
    deleted one."""
    experiment_id = submitted(database, visibility="lab")
    sweep = client.post(
        "/v1/sweeps", json={"spec": ppca_spec(), "grid": {"seeds": [[4]]}, "visibility": "lab"}
    ).json()
    keys = [key_of(database, "ann", Role.MEMBER) for _ in range(3)]
    one = f"/v1/experiments/{experiment_id}/events"
    with ExitStack() as stack:
        revoked, without_scope, withdrawn, of_sweep = (
            stack.enter_context(stream(client, path, headers=bearer(key)))
            for path, key in (("/v1/events", keys[0]), ("/v1/events", keys[2]), (one, keys[1]),
                                   (sweep["urls"]["events"], keys[1]))
        )  # fmt: skip
        assert next(withdrawn).data["status"] == "queued"
        assert next(of_sweep).data["status"] == "queued"
        revoke(database, keys[0])
        with database.transaction() as session:
            session.get_one(ApiKey, keys[2].split("_")[1]).scopes = [Scope.SUBMIT]
        for ended in (revoked, without_scope):
            assert [told.body for told in ended] == [{"reason": "refused"}]
        change(database, experiment_id, visibility="private")
        assert [told.body for told in withdrawn] == [{"reason": "refused"}]
        client.patch(sweep["urls"]["self"], json={"visibility": "private"})
        assert [told.body for told in of_sweep] == [{"reason": "refused"}]
    with stream(client, one) as events:
        next(events)
        client.delete(f"/v1/experiments/{experiment_id}")
        assert [*events][-1].kind == "end"


def test_the_streams_of_who_leaves_a_project_end(client: httpx.Client, database: Database) -> None:
    """Both streams end, of an experiment and of a sweep of the project; those of a member go on."""
    keys = [key_of(database, name, Role.MEMBER) for name in ("ann", "bob")]
    client.post("/v1/projects", json={"name": "vision", "members": ["local", "ann", "bob"]})
    experiment_id = submitted(database)
    with database.transaction() as session:
        project_id = session.scalars(select(Project.id)).one()
    change(database, experiment_id, visibility="project", project_id=project_id)
    sweep = client.post(
        "/v1/sweeps", json={"spec": ppca_spec(), "grid": {"seeds": [[4]]}, "project": "vision"}
    ).json()
    paths = (f"/v1/experiments/{experiment_id}/events", sweep["urls"]["events"])
    with ExitStack() as stack:
        anns, bobs = (
            [stack.enter_context(stream(client, path, headers=bearer(key))) for path in paths]
            for key in keys
        )
        for events in (*anns, *bobs):
            assert next(events).data["status"] == "queued"
        client.patch("/v1/projects/vision", json={"remove_members": ["ann"]})
        for events in anns:
            assert [told.body for told in events] == [{"reason": "refused"}]
        client.post(f"/v1/experiments/{experiment_id}:cancel")
        client.post(sweep["urls"]["cancel"])
        for events in bobs:
            assert [told.kind for told in events][-1] == "end"


def test_the_streams_of_a_browser_end_with_its_key(
    client: httpx.Client, database: Database
) -> None:
    """They continue while other keys of the user end."""
    key = client.headers["Authorization"].removeprefix("Bearer ")
    other_key = key_of(database, "local", Role.ADMIN)
    own_page = {"Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=client.base_url, headers=own_page) as browser, ExitStack() as stack:
        assert browser.post("/v1/sign-in", json={"key": key}).status_code == 204
        by_cookie = stack.enter_context(stream(browser, "/v1/events"))
        by_other_key = stack.enter_context(stream(client, "/v1/events", headers=bearer(other_key)))
        revoke(database, other_key)
        assert [told.body for told in by_other_key] == [{"reason": "refused"}]
        claim = claimed(database)
        assert next(by_cookie).body["experiment_id"] == claim.experiment_id
        revoke(database, key)
        assert [told.body for told in by_cookie][-1] == {"reason": "refused"}


def test_streams_of_a_user_are_limited(client: httpx.Client, database: Database) -> None:
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(stream(client, "/v1/events"))
        refused = client.get("/v1/events", headers={"Accept": "text/event-stream"})
        assert refused.status_code == 429
        assert refused.json()["reason"] == "too_many_streams"
        assert int(refused.headers["Retry-After"]) > 0
        assert client.get("/v1/events").status_code == 200
        of_another = bearer(key_of(database, "ann", Role.MEMBER))
        stack.enter_context(stream(client, "/v1/events", headers=of_another))
    # A listener that leaves frees its place.
    wait_until(lambda: is_open(client))


def is_open(client: httpx.Client) -> bool:
    headers = {"Accept": "text/event-stream"}
    with client.stream("GET", "/v1/events", headers=headers) as answer:
        return answer.status_code == 200


def test_a_silent_stream_is_pinged(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.05)
    headers = {"Accept": "text/event-stream"}
    with client.stream("GET", "/v1/events", headers=headers) as answer:
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(4)] == [": ping", "", ": ping", ""]


def test_streams_close_after_an_internal_error_and_work_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of the service itself the stream closes, and the next one is served."""
    look, failing = Changes.look, threading.Event()

    def failing_look(self: Changes, *arguments: Any, **named: Any) -> Look:
        if failing.is_set():
            raise RuntimeError
        return look(self, *arguments, **named)

    monkeypatch.setattr(Changes, "look", failing_look)
    with served(settings) as client:
        claimed(Database(settings.url))
        with stream(client, "/v1/events") as events:
            next(events)
            failing.set()
            assert [*events] == []
            failing.clear()
        with stream(client, "/v1/events") as events:
            assert next(events).data["status"] == "running"


def test_a_server_that_stops_ends_its_streams(settings: Settings) -> None:
    """At SIGTERM: without an `end`, so that listeners reconnect."""
    lab = Lab(settings, settings.store / "log", fork)
    api = lab.start("api", "api", "--port", str(lab.port))
    try:
        with lab.client() as ready:
            key = settings.key_file.read_text().strip()
            with httpx.Client(base_url=ready.url, headers=bearer(key), timeout=30) as client:
                with stream(client, "/v1/events") as events:
                    api.send_signal(signal.SIGTERM)
                    assert [*events] == []
        assert api.wait(timeout=10) in (0, -signal.SIGTERM)
    finally:
        lab.stop()

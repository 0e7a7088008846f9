"""Webhooks: each end is delivered at least once, signed, until it is accepted or given up."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import OperationalError
from standardwebhooks import Webhook as Verifier
from uuid6 import uuid7

from mptlab.serve import free_port
from service.accounts.models import User
from service.db.engine import Database, now
from service.experiments import deletion
from service.experiments.models import Attempt, Wait
from service.queue import lease, states
from service.queue.lease import FailureCause
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from service.webhooks import store
from service.webhooks.models import Delivery, Webhook
from service.webhooks.resolving import LOOK_UPS
from service.webhooks.sending import TRY_S, new_secret
from tests.support.attempts import claimed, submitted
from tests.support.processes import wait_until
from tests.support.receivers import Receiver, receiving
from tests.support.starting import release_held
from tests.support.stored import change
from worker.messenger import Messenger

SECRET = new_secret()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def messenger(either: Database, settings: Settings) -> Messenger:
    allowing = settings.model_copy(update={"webhooks_to_private": True})
    return Messenger(either, allowing)


def webhook(database: Database, url: str, statuses: str = "succeeded,failed,cancelled") -> str:
    with database.transaction() as session:
        made = Webhook(id=uuid7().hex, owner_id=1, url=url, secret=SECRET, statuses=statuses)
        session.add(made)
        return made.id


def ended(database: Database, status: Status = Status.SUCCEEDED) -> str:
    claim = claimed(database)
    cause = FailureCause("error", "it broke") if status == Status.FAILED else None
    with database.transaction() as session:
        lease.finish(session, claim, status, cause)
    return claim.experiment_id


def cancelled(database: Database, experiment_id: str) -> None:
    with database.transaction() as session:
        states.request(session, experiment_id, DesiredState.CANCEL)


def experiments(receiver: Receiver) -> list[str]:
    return [verified(*one)["data"]["experiment_id"] for one in receiver.told]


def verified(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = Verifier(SECRET).verify(body, headers)
    return found


def deliveries(database: Database) -> list[Delivery]:
    with database.snapshot() as session:
        return [*session.scalars(select(Delivery).order_by(Delivery.experiment_id))]


def make_due(database: Database) -> None:
    with database.transaction() as session:
        due = update(Delivery).where(Delivery.next_at.is_not(None))
        session.execute(due.values(next_at=now() - 1))


def test_an_end_is_delivered_once_and_signed(
    either: Database, messenger: Messenger, receiver: Receiver
) -> None:
    before = ended(either)
    hook = webhook(either, receiver.url)
    experiment_id = ended(either)
    assert messenger.tell() == 1
    assert messenger.tell() == 0
    ((headers, body),) = receiver.told
    assert headers["webhook-id"] == f"msg_{hook}_{experiment_id}"
    assert headers["Content-Type"] == "application/json"
    assert headers["Host"] == f"127.0.0.1:{receiver.port}"
    told = verified(headers, body)
    assert told["type"] == "experiment.succeeded"
    assert told["data"] == {
        "experiment_id": experiment_id,
        "status": "succeeded",
        "url": f"/v1/experiments/{experiment_id}",
    }
    assert before not in body.decode()
    (delivery,) = deliveries(either)
    assert delivery.delivered_at is not None
    assert (delivery.next_at, delivery.last_error) == (None, None)


def test_ends_of_all_kinds(either: Database, messenger: Messenger, receiver: Receiver) -> None:
    """Experiments end through an attempt, their owner, their sweep, and a failed predecessor."""
    webhook(either, receiver.url)
    failing = claimed(either)
    chained = submitted(either)
    with either.transaction() as session:
        session.add(Wait(experiment_id=chained, after_id=failing.experiment_id))
        lease.finish(session, failing, Status.FAILED, FailureCause("error", "it broke"))
    release_held(either)
    waiting = submitted(either)
    cancelled(either, waiting)
    while messenger.tell():
        pass
    assert sorted(experiments(receiver)) == sorted([failing.experiment_id, chained, waiting])


def test_only_selected_ends_of_own_experiments_are_delivered(
    either: Database, messenger: Messenger, receiver: Receiver
) -> None:
    webhook(either, receiver.url, "failed")
    ended(either)
    failed = ended(either, Status.FAILED)
    theirs = submitted(either)
    with either.transaction() as session:
        session.add(User(name="ann"))
        session.flush()
        ann = session.scalar(select(User.id).where(User.name == "ann"))
    change(either, theirs, owner_id=ann)
    cancelled(either, theirs)
    while messenger.tell():
        pass
    assert experiments(receiver) == [failed]


def test_rolled_back_ends_are_not_delivered(either: Database, receiver: Receiver) -> None:
    webhook(either, receiver.url)
    claim = claimed(either)

    def fail() -> None:
        with either.transaction() as session:
            lease.finish(session, claim, Status.SUCCEEDED)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert deliveries(either) == []


@pytest.mark.parametrize("status", [500, 404, 302])
def test_failed_deliveries_are_retried(
    either: Database, messenger: Messenger, receiver: Receiver, status: int
) -> None:
    receiver.statuses = [status, 204]
    webhook(either, receiver.url)
    experiment_id = ended(either)
    assert messenger.tell() == 1
    (delivery,) = deliveries(either)
    assert str(status) in (delivery.last_error or "")
    assert messenger.tell() == 0  # not yet
    make_due(either)
    assert messenger.tell() == 1
    assert experiments(receiver) == [experiment_id] * 2
    first, second = (headers["webhook-id"] for headers, _ in receiver.told)
    assert first == second
    (delivery,) = deliveries(either)
    assert (delivery.last_error, delivery.next_at) == (None, None)


def test_the_cause_of_a_failed_delivery_is_logged(
    either: Database, messenger: Messenger, caplog: pytest.LogCaptureFixture
) -> None:
    hook = webhook(either, f"http://127.0.0.1:{free_port()}/")
    ended(either)
    with caplog.at_level("INFO"):
        assert messenger.tell() == 1
    (line,) = [one for one in caplog.records if "delivery failed" in one.message]
    assert vars(line)["webhook_id"] == hook
    assert "Connect" in vars(line)["cause"]


def test_deliveries_are_given_up_after_ever_longer_pauses(
    either: Database, messenger: Messenger, receiver: Receiver
) -> None:
    receiver.statuses = [503]
    webhook(either, receiver.url)
    ended(either)
    pauses: list[float] = []
    while deliveries(either)[0].given_up_at is None:
        make_due(either)
        assert messenger.tell() == 1
        with either.snapshot() as session:
            due = select(Delivery.next_at - now()).where(Delivery.next_at.is_not(None))
            pauses += [round(pause or 0.0, -1) for pause in session.scalars(due)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 3600
    assert len(receiver.told) == len(pauses) + 1
    make_due(either)
    assert messenger.tell() == 0
    assert "503" in (deliveries(either)[0].last_error or "")


def test_two_messengers_do_not_send_the_same_delivery(either: Database, receiver: Receiver) -> None:
    webhook(either, receiver.url)
    ended(either)
    with either.transaction() as session:
        (mine,) = store.claim(session)
    with either.transaction() as session:
        assert store.claim(session) == []
    # Its messenger dies, and another one sends it: later reports of the first change nothing.
    make_due(either)
    with either.transaction() as session:
        (theirs,) = store.claim(session)
    with either.transaction() as session:
        store.settle(session, mine, "too late")
    (delivery,) = deliveries(either)
    assert delivery.last_error is None
    with either.transaction() as session:
        store.settle(session, theirs, None)
    assert deliveries(either)[0].delivered_at is not None


def test_a_slow_address_does_not_slow_another(
    either: Database, messenger: Messenger, receiver: Receiver
) -> None:
    """It takes its connections, and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        webhook(either, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        webhook(either, receiver.url)
        made = [ended(either) for _ in range(3)]
        stopping = threading.Event()
        thread = threading.Thread(target=messenger.run, args=[stopping])
        thread.start()
        try:
            wait_until(lambda: len(receiver.told) == 3, timeout_s=TRY_S * 0.9)
        finally:
            stopping.set()
            thread.join()
    assert experiments(receiver) == made
    assert {one.delivered_at is None for one in deliveries(either)} == {True, False}


def test_unknown_host_names_do_not_delay_other_users(
    either: Database, messenger: Messenger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has as many as allowed; each look-up keeps its thread."""
    over, under_way, most = threading.Event(), [0], [0]
    real = socket.getaddrinfo

    def look_up(host: Any, *rest: Any, **how: Any) -> Any:
        if not str(host).endswith(".tarpit"):
            return real(host, *rest, **how)
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        over.wait()
        under_way[0] -= 1
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with either.transaction() as session:
        session.add(User(id=2, name="ann"))
    for i in range(40):
        webhook(either, f"http://{i}.tarpit/")
    ended(either)
    stopping = threading.Event()
    thread = threading.Thread(target=messenger.run, args=[stopping])
    thread.start()
    try:
        wait_until(lambda: most[0] >= LOOK_UPS)
        hook = webhook(either, receiver.url)
        theirs = submitted(either)
        change(either, theirs, owner_id=2)
        with either.transaction() as session:
            session.execute(update(Webhook).where(Webhook.id == hook).values(owner_id=2))
        cancelled(either, theirs)
        wait_until(lambda: len(receiver.told) == 1, timeout_s=30.0)
        assert not over.is_set()
    finally:
        over.set()
        stopping.set()
        thread.join()
    assert most[0] == LOOK_UPS


def test_all_webhooks_are_served_in_turn(either: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check more due webhooks than are sent at once. They are drawn, and each of four is in half of
    the draws of two: all but one in a million of these tests see each in 22 draws."""
    monkeypatch.setattr(store, "TOGETHER", 2)
    hooks = {webhook(either, f"http://127.0.0.1:9/{i}") for i in range(4)}
    for _ in range(22):
        ended(either)
    told: set[str] = set()
    for _ in range(22):
        with either.transaction() as session:
            told |= {one.webhook_id for one in store.claim(session)}
    assert told == hooks


def test_deliveries_are_deleted_with_their_experiment_or_webhook(
    either: Database, messenger: Messenger, receiver: Receiver
) -> None:
    """Deliveries go with their experiment, with their webhook, and after a week."""
    hook = webhook(either, receiver.url)
    gone, old = ended(either), ended(either)
    while messenger.tell():
        pass
    with either.transaction() as session:
        session.execute(update(Delivery).values(delivered_at=now() - store.KEPT_S - 1))
        session.execute(
            update(Delivery).where(Delivery.experiment_id == gone).values(delivered_at=now())
        )
        store.forget(session)
    assert [one.experiment_id for one in deliveries(either)] == [gone]
    assert old not in gone
    with either.transaction() as session:
        deletion.remove_ended(session, [gone])
        session.execute(update(Attempt).values(folded=True))
        assert deletion.purge(session, gone)
        assert session.scalar(select(func.count()).select_from(Delivery)) == 0
    ended(either)
    with either.transaction() as session:
        found = store.find(session, hook, 1)
        assert found is not None
        store.remove(session, found)
    assert deliveries(either) == []


def test_deliveries_of_a_deleted_webhook_are_not_sent(
    either: Database, messenger: Messenger
) -> None:
    """Its experiment ended while it was deleted: nothing is sent, and it is forgotten."""
    hook = webhook(either, "http://127.0.0.1:9/")
    ended(either)
    with either.transaction() as session:
        session.delete(session.get_one(Webhook, hook))
    assert messenger.tell() == 0
    assert len(deliveries(either)) == 1
    with either.transaction() as session:
        store.forget(session)
    assert deliveries(either) == []


def test_an_invalid_address_does_not_end_the_messenger(
    either: Database, messenger: Messenger, receiver: Receiver
) -> None:
    webhook(either, "http://[")
    webhook(either, receiver.url)
    experiment_id = ended(either)
    assert messenger.tell() == 2
    assert experiments(receiver) == [experiment_id]
    assert len([one for one in deliveries(either) if one.last_error]) == 1


def test_webhooks_of_a_disabled_user_are_not_sent(
    either: Database, messenger: Messenger, receiver: Receiver
) -> None:
    """Neither ends before the user was disabled, nor those after."""
    webhook(either, receiver.url)
    ended(either)
    claim = claimed(either)
    with either.transaction() as session:
        session.execute(update(User).values(disabled_at=now()))
        lease.finish(session, claim, Status.SUCCEEDED)
    with either.snapshot() as session:
        assert not store.is_due(session)
    assert messenger.tell() == 0
    assert receiver.told == []
    with either.transaction() as session:
        store.forget(session)
    assert deliveries(either) == []


def test_a_webhook_has_one_delivery_at_a_time(
    either: Database, messenger: Messenger, receiver: Receiver
) -> None:
    """Its next end waits until this one is settled; other webhooks do not wait."""
    busy = webhook(either, receiver.url)
    ended(either)
    messenger._under_way[busy] = cast(Any, None)
    assert messenger._claimed() == ()
    other = webhook(either, receiver.url)
    ended(either)
    assert [one.webhook_id for one in messenger._claimed()] == [other]
    del messenger._under_way[busy]
    assert [one.webhook_id for one in messenger._claimed()] == [busy]


def test_an_outage_of_the_database_ends_no_messenger(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    messenger, stopping = Messenger(database, settings), threading.Event()
    looks: list[int] = []
    cleanings: list[bool] = []

    async def begin() -> int:
        looks.append(1)
        if len(looks) < 3:
            raise OperationalError("away", None, Exception())
        stopping.set()
        return 0

    async def sleep(seconds: float) -> None:
        assert seconds > 0

    monkeypatch.setattr(messenger, "_begin", begin)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(store, "forget", lambda session: cleanings.append(session.in_transaction()))
    messenger.run(stopping)
    assert len(looks) == 3
    messenger._forget()
    assert cleanings == [True]

"""Claims, plans and scores of a process in a divided run, as records and orders."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mptcore.protocol.orders import Order, SentScores
from mptcore.protocol.records import BatchClaim, BatchPlan, BatchScores, DivisionStart, Record
from mptcore.runtime import exchange
from mptcore.runtime.division import MAX_AHEAD
from mptcore.runtime.exchange import Exchange, decoded, encoded


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ANSWER_S", 0.0)


def part(helps: bool) -> tuple[Exchange, list[Record]]:
    """Return a part of a run, and the records that it emits."""
    records: list[Record] = []
    return Exchange(helps, records.append), records


def order(**fields: Any) -> Order:
    return Order.model_validate_json(Order(**fields).model_dump_json())


def refuse() -> torch.Tensor:
    raise AssertionError


def test_a_run_without_helpers_computes_all_and_says_nothing() -> None:
    one, records = part(helps=False)
    assert [one.claim(number) for number in (0, 1, 7)] == [0, 1, 7]
    assert one.found(7) is None
    plan = one.plan(0, lambda: torch.tensor([3]))
    assert plan is not None
    assert plan.tolist() == [3]
    assert records == []


def test_a_run_begins_to_share_its_work() -> None:
    """It keeps two batches to compute meanwhile, and publishes the plans made before."""
    one, records = part(helps=False)
    one.plan(0, lambda: torch.tensor([5, 6]))
    one.obey(order(divide=True))
    assert [one.claim(4), one.claim(5)] == [4, 5]
    assert records == [DivisionStart(6), BatchPlan(0, [5, 6]), BatchClaim(1)]
    assert one.claim(6) is None
    one.obey(order(span=(9, 3)))
    assert [one.claim(number) for number in (6, 9, 10)] == [9, 9, 10]
    one.plan(1, lambda: torch.tensor([7]))
    assert records[3:] == [BatchPlan(1, [7])]


def test_the_next_span_is_claimed_during_the_last_batch_of_one() -> None:
    one, records = part(helps=True)
    assert one.claim(0) is None
    assert records == [BatchClaim(1)]
    one.obey(order(span=(2, 3)))
    assert [one.claim(number) for number in (0, 3)] == [2, 3]
    assert len(records) == 1
    assert one.claim(4) == 4
    assert len(records) == 2
    one.obey(order(span=(20, 1)))
    assert one.claim(5) == 20


def test_claims_are_for_about_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 0.0
    monkeypatch.setattr(exchange, "time", SimpleNamespace(monotonic=lambda: at))
    for batch_s, expected in ((0.5, 4), (0.01, exchange.MAX_SPAN), (30.0, 1)):
        one, records = part(helps=True)
        one.obey(order(span=(0, 40)))
        for number in range(40):
            assert one.claim(number) == number
            at += batch_s
        assert one.claim(40) is None
        (claim,) = records
        assert isinstance(claim, BatchClaim)
        assert claim.count == expected


def test_scores_arrive_once_and_old_ones_are_forgotten() -> None:
    values = torch.tensor([[[1.5, -2.0]], [[0.0, 1e-300]]], dtype=torch.float64)
    one, _ = part(helps=False)
    helper, records = part(helps=True)
    late = MAX_AHEAD + 4
    for number in (3, 4, 5, late):
        helper.put(number, values + number)
    sent = [
        SentScores(number=one.number, shape=[*one.shape], data=one.data)
        for one in records
        if isinstance(one, BatchScores)
    ]
    one.obey(order(scores=sent))
    assert one.found(2) is None
    found = one.found(4)
    assert found is not None
    assert torch.equal(found, values + 4)
    assert one.found(4) is None
    assert one.found(3) is not None  # it may have arrived a moment ago
    assert one.found(late) is not None
    assert one.found(5) is not None


def test_scores_before_those_that_can_be_needed_are_forgotten() -> None:
    one, _ = part(helps=False)
    helper, records = part(helps=True)
    helper.put(4, torch.zeros(1, 1, 1, dtype=torch.float64))
    (sent,) = (record for record in records if isinstance(record, BatchScores))
    one.obey(order(scores=[SentScores(number=4, shape=[1, 1, 1], data=sent.data)]))
    assert one.found(MAX_AHEAD + 4) is None
    assert one.found(4) is None


def test_too_many_scores_for_a_line_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_SCORES", 6)
    helper, records = part(helps=True)
    helper.put(0, torch.zeros(1, 2, 3, dtype=torch.float64))
    helper.put(1, torch.zeros(1, 1, 7, dtype=torch.float64))
    assert [one.number for one in records if isinstance(one, BatchScores)] == [0]


def test_a_part_of_scores_is_sent_as_it_is() -> None:
    """Columns of a larger tensor are not contiguous."""
    values = torch.randn(2, 3, 8, dtype=torch.float64)[:, :, ::3]
    record = encoded(7, values)
    sent = SentScores(number=record.number, shape=[*record.shape], data=record.data)
    assert torch.equal(decoded(sent), values)


def test_a_helper_uses_published_plans_alone() -> None:
    helper, records = part(helps=True)
    assert helper.plan(0, refuse) is None
    helper.obey(order(plans=[{"number": 0, "values": [1, 2]}]))
    found = helper.plan(0, refuse)
    assert found is not None
    assert found.tolist() == [1, 2]
    assert helper.plan(1, refuse) is None
    assert records == []


def test_a_run_waits_once_for_answers_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor may be without a database for long. A helper waits each time."""
    for helps, expected in ((False, [5.0]), (True, [5.0, 5.0, 5.0])):
        waits: list[float] = []
        mine = Exchange(helps, lambda record: None)
        mine.obey(order(divide=True))
        if not helps:
            assert [mine.claim(0), mine.claim(1)] == [0, 1]  # its own first two

        def wait_for(condition: object, timeout: float) -> bool:
            waits.append(timeout)  # noqa: B023
            return False

        monkeypatch.setattr(exchange, "ANSWER_S", 5.0)
        monkeypatch.setattr(mine._changed, "wait_for", wait_for)
        assert [mine.claim(2) for _ in range(3)] == [None] * 3
        assert waits == expected
        mine.obey(order(span=(2, 1)))
        assert mine.claim(2) == 2
        assert mine.claim(3) is None
        assert waits == [*expected, 5.0]


def test_a_claim_waits_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends when the answer comes, from another thread."""
    monkeypatch.setattr(exchange, "ANSWER_S", 60.0)
    asked = threading.Event()
    helper = Exchange(True, lambda record: asked.set())

    def answer() -> None:
        asked.wait()
        helper.obey(order(span=(5, 1), plans=[{"number": 0, "values": [4]}]))

    thread = threading.Thread(target=answer)
    thread.start()
    assert helper.claim(0) == 5
    found = helper.plan(0, refuse)
    assert found is not None
    thread.join()

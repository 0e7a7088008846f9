"""Drawing ahead gives the same items in the same order."""

import threading
from collections.abc import Iterator

import pytest
import torch

from mptcore.estimation.prefetch import prefetch


@pytest.fixture(params=[1, 2], ids="{} threads".format)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", range(5))
def test_items_come_in_order_and_the_next_is_drawn_before(threads: int, count: int) -> None:
    drawn: list[int] = []
    is_drawn = [threading.Event() for _ in range(count)]

    def draw(item: int) -> str:
        drawn.append(item)
        is_drawn[item].set()
        return str(item)

    for used, (item, text) in enumerate(prefetch(draw, iter(range(count)))):
        assert (item, text) == (used, str(used))
        if threads > 1 and used + 1 < count:
            assert is_drawn[used + 1].wait(60)
        assert drawn == [*range(min(count, used + threads))]
    assert drawn == [*range(count)]


def test_an_error_reaches_the_caller_after_the_items_before_it(threads: int) -> None:
    def draw(item: int) -> int:
        return 1 // (2 - item)

    pairs = prefetch(draw, range(4))
    assert next(pairs) == (0, 0)
    with pytest.raises(ZeroDivisionError):
        list(pairs)
    assert threads == torch.get_num_threads()

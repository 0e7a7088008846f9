"""Places go to the users that wait, in turns."""

import asyncio
from collections.abc import Callable

import pytest

from service.places import AHEAD, Places


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class Taker:
    """A request of a user that waits for a place, or holds one."""

    def __init__(self, places: Places, user: int):
        self.user = user
        self.task = asyncio.create_task(places.take(user))

    @property
    def has_place(self) -> bool:
        return self.task.done()

    def give_back(self) -> None:
        self.task.result()()


def run(test: Callable[[], object]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


async def ask(places: Places, order: list[int], user: int) -> None:
    """Hold a place for a moment, and note whose turn it is."""
    async with places.place(user):
        order.append(user)
        await asyncio.sleep(0)


def test_a_user_with_many_requests_waits_behind_one_with_few() -> None:
    async def test() -> None:
        places = Places(2, of_user=2)
        first = [Taker(places, 1) for _ in range(5)]
        await settle()
        second = Taker(places, 2)
        await settle()
        assert [one.has_place for one in first] == [True, True, False, False, False]
        first[0].give_back()
        await settle()
        assert (second.has_place, first[2].has_place) == (True, False)

    run(test)


def test_users_that_hold_equally_many_take_turns() -> None:
    async def test() -> None:
        places, order = Places(1, of_user=1), list[int]()

        await asyncio.gather(*(ask(places, order, user) for user in (1, 1, 1, 2, 2, 2, 3, 3)))
        assert order[:5] == [1, 2, 3, 3, 1]

    run(test)


def test_a_user_who_sends_few_goes_before_users_who_send_many() -> None:
    """Also if its request comes last."""

    async def test() -> None:
        places = Places(1, of_user=1)
        rare = Taker(places, 9)
        await settle()
        rare.give_back()
        many = [Taker(places, user) for user in (1, 2, 1, 2, 1, 2, 1, 2)]
        await settle()
        many[0].give_back()
        await settle()
        many[1].give_back()
        rare = Taker(places, 9)
        await settle()
        many[2].give_back()
        await settle()
        assert rare.has_place

    run(test)


def test_a_user_who_waits_for_one_answer_goes_before_users_who_wait_for_several() -> None:
    """Also if it has had a turn later than they, but not for ever."""

    async def test() -> None:
        places, order = Places(1, of_user=1), list[int]()

        async def ask_again(user: int) -> None:
            for _ in range(2 * AHEAD):
                await ask(places, order, user)

        others = [ask(places, order, user) for user in (1, 1, 2, 2, 3, 3)]
        await asyncio.gather(ask_again(8), ask_again(9), *others)
        assert {*order[: AHEAD // 2]} == {8, 9}
        assert {*order[:AHEAD]} == {8, 9, 1, 2, 3}

    run(test)


def test_one_user_does_not_get_all_places() -> None:
    async def test() -> None:
        places = Places(3, of_user=2)
        first = [Taker(places, 1) for _ in range(3)]
        await settle()
        assert [one.has_place for one in first] == [True, True, False]
        assert (places.is_full(1), places.is_full(2)) == (True, False)
        second = Taker(places, 2)
        await settle()
        assert second.has_place
        assert places.is_full(3)

    run(test)


@pytest.mark.parametrize("granted", [False, True])
def test_a_request_that_goes_while_it_waits_leaves_its_place(granted: bool) -> None:
    """Also if its turn has come, and it does not know it yet."""

    async def test() -> None:
        places = Places(1, of_user=1)
        first, second, third = (Taker(places, user) for user in (1, 2, 3))
        await settle()
        if granted:
            first.give_back()
        second.task.cancel()
        if not granted:
            first.give_back()
        await settle()
        assert third.has_place
        third.give_back()
        assert not places.is_full(1)

    run(test)


def test_a_place_is_given_back_once() -> None:
    async def test() -> None:
        places = Places(2, of_user=2)
        first, second = Taker(places, 1), Taker(places, 1)
        await settle()
        first.give_back()
        first.give_back()
        assert not places.is_full(1)
        third = Taker(places, 1)
        await settle()
        assert third.has_place
        assert second.has_place
        assert places.is_full(1)

    run(test)

"""Draw the next masks while the device is busy."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

ItemT = TypeVar("ItemT")
DrawnT = TypeVar("DrawnT")


def ahead(
    draw: Callable[[ItemT], DrawnT], items: Iterable[ItemT]
) -> Iterator[tuple[ItemT, DrawnT]]:
    """Yield each item with what is drawn for it, in order. If torch uses several threads, another
    thread draws for the next item while the caller uses the current one: random numbers are drawn
    one by one."""
    rest = iter(items)
    now = next(rest, None)
    if now is None:
        return
    drawn = draw(now)
    if torch.get_num_threads() == 1:
        yield now, drawn
        yield from ((item, draw(item)) for item in rest)
        return
    following = next(rest, None)
    if following is None:
        yield now, drawn
        return
    with ThreadPoolExecutor(1) as pool:
        while following is not None:
            coming = pool.submit(draw, following)
            yield now, drawn
            now, drawn, following = following, coming.result(), next(rest, None)
        yield now, drawn


class Prefetch(Iterator[ItemT]):
    """Iterator whose next item can be drawn before it is requested."""

    def __init__(self, items: Iterator[ItemT]):
        self._items = items
        self._drawn: list[ItemT] = []

    def draw(self) -> None:
        """Draw the next item, unless it is already drawn."""
        if not self._drawn:
            self._drawn.extend(islice(self._items, 1))

    def __next__(self) -> ItemT:
        self.draw()
        if not self._drawn:
            raise StopIteration
        return self._drawn.pop()

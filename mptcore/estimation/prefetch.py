"""Draw the next masks while the device is busy."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

import torch

ItemT = TypeVar("ItemT")
DrawnT = TypeVar("DrawnT")


def prefetch(
    draw: Callable[[ItemT], DrawnT], items: Iterable[ItemT]
) -> Iterator[tuple[ItemT, DrawnT]]:
    """Yield each item with what is drawn for it, in order. If torch uses several threads, another
    thread draws for the next item while the caller uses the current one: random numbers are drawn
    one by one."""
    remaining = iter(items)
    first_two = list(islice(remaining, 2))
    items = chain(first_two, remaining)
    if len(first_two) < 2 or torch.get_num_threads() == 1:  # a thread costs more than it gains
        yield from ((item, draw(item)) for item in items)
        return
    with ThreadPoolExecutor(1) as pool:
        drawing = ((item, pool.submit(draw, item)) for item in items)
        current = next(drawing, None)
        while current is not None:
            following = next(drawing, None)
            item, drawn = current
            yield item, drawn.result()
            current = following


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

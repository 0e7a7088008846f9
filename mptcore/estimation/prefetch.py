"""Draw the next masks while the device is busy."""

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

ItemT = TypeVar("ItemT")


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

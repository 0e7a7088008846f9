"""Drawing the next masks while a device has work."""

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

ItemT = TypeVar("ItemT")


class Ahead(Iterator[ItemT]):
    """The items of an iterator, of which one may be drawn before it is asked for."""

    def __init__(self, items: Iterator[ItemT]):
        self._items = items
        self._drawn: list[ItemT] = []

    def draw(self) -> None:
        """The next item, if it is not there yet."""
        if not self._drawn:
            self._drawn.extend(islice(self._items, 1))

    def __next__(self) -> ItemT:
        self.draw()
        if not self._drawn:
            raise StopIteration
        return self._drawn.pop()

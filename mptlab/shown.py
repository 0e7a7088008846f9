"""Objects that a notebook displays as a table read from the service."""

from abc import ABC, abstractmethod

from mptlab.curves import table_html
from mptlab.errors import Json


class ShownTable(ABC):
    """Displayed as its table."""

    @abstractmethod
    def table(self) -> list[Json]: ...

    def _repr_html_(self) -> str:
        rows = self.table()
        names = list(dict.fromkeys(name for row in rows for name in row))
        return table_html(names, ([row.get(name) for name in names] for row in rows))


class AsyncShownTable:
    """Not displayed as a table: a notebook cannot await the content."""

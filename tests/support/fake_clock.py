"""The database's clock, set by a test."""

from typing import Any

from sqlalchemy import Engine, event

CLOCKS = {
    "((julianday('now') - 2440587.5) * 86400.0)": "",
    "extract(epoch from clock_timestamp())::float8": "::float8",
}
"""The database's clock as SQL, and the type of the number that takes its place."""


class FakeClock:
    """`now` in every statement of an engine."""

    def __init__(self, engine: Engine, now: float = 1_000_000.0):
        self.now = now
        event.listen(engine, "before_cursor_execute", self._set, retval=True)

    def _set(self, *arguments: Any) -> tuple[str, Any]:
        """SQLAlchemy's before_cursor_execute: the statement is the third argument."""
        statement, parameters = arguments[2:4]
        for clock, cast in CLOCKS.items():
            statement = statement.replace(clock, f"({self.now!r}{cast})")
        return statement, parameters

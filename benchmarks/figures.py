"""Measured numbers with their bounds, and repeated measurements."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured number and the bound that it is to keep, if it has one."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    def __str__(self) -> str:
        bound, missed = "", False
        if self.at_most is not None:
            bound, missed = f"< {self.at_most:g}", self.value > self.at_most
        if self.at_least is not None:
            bound, missed = f"≥ {self.at_least:g}", self.value < self.at_least
        return f"{self.name:34}{self.value:12,.2f} {self.unit:9}{bound:>10}{'  missed' * missed}"


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]

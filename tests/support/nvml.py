"""A simulated NVML, for tests without a GPU. Its names are those of the package pynvml."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

GIB = 2**30
T = TypeVar("T")


class NVMLError(Exception):
    pass


@dataclass
class Card:
    """A GPU, or a part of one that is divided."""

    uuid: str
    free: int | None = 80 * GIB
    """None: the driver does not report it, as for a GPU that shares the CPU's memory."""
    processes: dict[int, int] = field(default_factory=dict)
    """Bytes by process."""
    parts: list["Card"] | None = None
    """Parts of a divided card (MIG)."""
    mig_mode: tuple[int, int] = (1, 1)
    """MIG mode now, and after the next reset."""


class Nvml:
    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *cards: Card):
        self.cards = cards

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "610.0"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self._one(card for i, card in enumerate(self.cards) if i == index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        everything = [*self.cards, *(part for card in self.cards for part in card.parts or ())]
        return self._one(card for card in everything if card.uuid == uuid)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        return "A GPU"

    def nvmlDeviceGetIndex(self, card: Card) -> int:
        return self._one(i for i, one in enumerate(self.cards) if one is card)

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        if card.parts is None:
            raise NVMLError("not supported")
        return [*card.mig_mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        return self._one(part for i, part in enumerate(card.parts or ()) if i == index)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: Card) -> Card:
        return self._one(card for card in self.cards if part in (card.parts or ()))

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        if card.free is None:
            raise NVMLError("not supported")
        return SimpleNamespace(total=80 * GIB, free=card.free)

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        used = card.processes.items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=taken) for pid, taken in used]

    def _one(self, found: Iterable[T]) -> T:
        for one in found:
            return one
        raise NVMLError("not found")

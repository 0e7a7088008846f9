"""Size of a chaos test: the short test of the suite, and the long test of `make chaos`."""

from dataclasses import dataclass, replace


@dataclass
class Plan:
    """Number of actions and failures of a chaos test."""

    kills: int
    container_kills: int
    lab_stops: int
    stops: int
    controller_stops: int
    flushes: int
    broker_restarts: int
    black_holes: int
    database_restarts: int
    database_away_s: float
    cancels: int
    pauses: int
    displacements: int
    stalls: int
    slow_disks: int
    failovers: int
    disk_fills: int = 0
    """Number of times that the store's disk is full for a while, where it has one of its own."""
    memory_mib: int = 0
    """Main memory that both workers may use together, where a control group can be made."""
    every_s: tuple[float, float] = (0.3, 2.5)
    """Minimum and maximum time between two failures."""
    waiting: int = 3
    """Number of unfinished experiments of each user."""
    seed: int = 0


MEMORY_MIB = 2000
"""Enough for one large run beside two workers, and too little for two."""
SHORT = Plan(kills=4, container_kills=1, lab_stops=0, stops=1, controller_stops=1, flushes=1,
             broker_restarts=0, black_holes=0, database_restarts=1, database_away_s=0.0, cancels=1,
             pauses=2, displacements=3, stalls=0, slow_disks=1, failovers=1,
             every_s=(0.2, 1.0), waiting=2)  # fmt: skip
LONG = Plan(kills=200, container_kills=60, lab_stops=10, stops=50, controller_stops=20, flushes=10,
            broker_restarts=10, black_holes=5, database_restarts=30, database_away_s=90.0,
            cancels=15, pauses=30, displacements=60, stalls=4, slow_disks=20, failovers=10,
            disk_fills=8, memory_mib=MEMORY_MIB)  # fmt: skip
BRIEF = replace(SHORT, disk_fills=2, memory_mib=MEMORY_MIB)
"""The short plan with a disk and a limit of memory."""

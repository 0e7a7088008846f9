"""Compare queue positions and expected starts with what then happens, in random labs:
`python -m benchmarks.positions [--labs N]`.

Users with different shares, limits, priorities and usage wait for GPUs, and for CPU workers that
share a memory. At random moments some waiting experiments are looked up. Then nothing more is
submitted, and the lab runs to its end by the real choices. The error of a position is the
difference to the number of experiments that started before it on workers of the same kind. The
error of a start is in units of the lab's mean run time.
"""

import argparse
import random
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select, update

from benchmarks.figures import percentile
from service.db.engine import Database
from service.experiments.models import Experiment, Queue
from service.fair_share import FairShare
from service.operations.prepare import prepare
from service.queue import workers
from service.queue.position import queue_positions
from service.queue.schemas import QueuePosition
from service.queue.snapshot import QueueSnapshots
from service.queue.workers import Vitals
from service.settings import Settings
from service.vocabulary import Status
from tests.support.shared_lab import WITHIN_S, SharedLab

GIB = 2**30
MEMORY_GIB = 16
MOMENTS = 3
LOOKED_UP = 10
"""Maximum number of experiments that are looked up at a moment."""


@dataclass(frozen=True)
class Comparison:
    """A prediction for one experiment, and its start. Times are in mean run times."""

    position: int
    true_position: int
    start: float | None
    """None: it could not be estimated."""
    true_start: float


def random_lab(database: Database, pick: random.Random) -> SharedLab:
    """Return a lab with running and waiting experiments."""
    mean_s = 10 ** pick.uniform(2.5, 4)
    fair_share = FairShare(
        half_life_s=pick.choice([10.0, 1000.0]) * mean_s,
        advance_s=pick.choice([60.0, mean_s]),
        gpu_weight=pick.uniform(1, 10),
        max_running=pick.choice([None, None, None, 3]),
        spare_slots=pick.choice([0, 1]),
    )
    lab = SharedLab(database, fair_share, cpus=pick.randint(1, 6), gpus=pick.randint(0, 3))
    for queue, names in lab.idle.items():
        for name in names:
            register(database, name, queue)
    users = [
        lab.user(
            f"user {i}",
            shares=pick.choice([1, 1, 2, 4]),
            max_running=pick.choice([None] * 6 + [1, 2, 4]),
            may_jump=True,
        )
        for i in range(pick.randint(2, 6))
    ]
    has_memory_needs = pick.random() < 0.5
    kinds = ["cpu", "cpu", "auto", "cuda", "cuda"] if lab.idle[Queue.GPU] else ["cpu"]
    for _ in range(pick.randint(5, 12)):
        priority = pick.choice([0, 0, 0, 5, 150 if pick.random() < 0.3 else 0])
        ids = lab.submit(
            pick.choice(users), pick.randint(1, 25), mean_s, pick.choice(kinds), priority
        )
        group_mean_s, spread = mean_s * pick.uniform(0.5, 2), pick.choice([0.1, 0.5, 1.0])
        for id in ids:
            lab.lengths[id] = group_mean_s * pick.lognormvariate(-(spread**2) / 2, spread)
        if has_memory_needs:
            need = int(pick.uniform(1, 8) * GIB)
            with database.transaction() as session:
                group = update(Experiment).where(Experiment.id.in_(ids))
                session.execute(group.values(memory_bytes=need))
        lab.run(pick.uniform(0, 2) * mean_s)
    return lab


def register(database: Database, name: str, queue: Queue) -> None:
    """Register a worker: the CPU workers share a main memory, and each GPU has its own."""
    size = MEMORY_GIB * GIB
    with database.transaction() as session:
        if queue == Queue.GPU:
            memory: dict[str, Any] = {
                "gpu_uuid": name,
                "gpu_memory_total": size,
                "gpu_memory_free": size,
            }
        else:
            memory = {"memory_pools": [{"id": "host", "total": size, "free": size}]}
        workers.beat(session, name, Vitals("host", queue, size, **memory))


def look_up(lab: SharedLab, pick: random.Random) -> dict[str, QueuePosition]:
    """Return the positions of some waiting experiments. Most current runs report their progress."""
    with lab.database.transaction() as session:
        running = session.scalars(select(Experiment).where(Experiment.status == Status.RUNNING))
        began = {id: at for at, _, id in lab.starts}
        for experiment in running:
            if pick.random() < 0.7:
                experiment.progress_at = lab.clock.now
                end = began[experiment.id] + lab.lengths[experiment.id]
                experiment.progress_eta_s = end - lab.time
    snapshots = QueueSnapshots(WITHIN_S, lab.fair_share)
    with lab.database.snapshot() as session:
        waiting = session.scalars(
            select(Experiment).where(Experiment.status == Status.QUEUED).order_by(Experiment.id)
        ).all()
        chosen = pick.sample(waiting, min(len(waiting), LOOKED_UP))
        return queue_positions(session, chosen, snapshots)


def comparisons(database: Database, seed: int) -> Iterator[Comparison]:
    """Yield the predictions in one random lab beside what happened."""
    pick = random.Random(seed)
    lab = random_lab(database, pick)
    mean_s = statistics.fmean(lab.lengths.values())
    looked_up = []
    for _ in range(MOMENTS):
        looked_up.append((lab.clock.now, len(lab.starts), look_up(lab, pick)))
        lab.run(pick.uniform(0, 4) * mean_s)
    lab.run()
    with database.snapshot() as session:
        queues = {
            row.id: row.queue for row in session.execute(select(Experiment.id, Experiment.queue))
        }
    for clock, started, positions in looked_up:
        later = lab.starts[started:]
        for number, (at, _, id) in enumerate(later):
            if id in positions:
                predicted = positions[id]
                start = predicted.estimated_start
                yield Comparison(
                    position=predicted.position,
                    true_position=sum(queues[i] == queues[id] for _, _, i in later[:number]),
                    start=None if start is None else (start.timestamp() - clock) / mean_s,
                    true_start=(lab.began + at - clock) / mean_s,
                )


def report(name: str, found: Sequence[Comparison]) -> str:
    positions = [float(abs(one.position - one.true_position)) for one in found]
    starts = [abs(one.start - one.true_start) for one in found if one.start is not None]
    errors = "   ".join(
        f"{what}: median {statistics.median(values):.2f}, 95 % {percentile(values, 95):.1f}"
        for what, values in (("position", positions), ("start", starts))
    )
    return f"{name:14}{len(found):6}   {errors}   unknown starts {1 - len(starts) / len(found):.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.positions", description=__doc__)
    parser.add_argument("--labs", type=int, default=200)
    options = parser.parse_args()
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder, "prepared")
        prepare(Settings(store=prepared, database_url=None))
        for seed in range(options.labs):
            store = Path(folder, "lab")
            shutil.copytree(prepared, store)
            with closing(Database(Settings(store=store, database_url=None).url)) as database:
                found += comparisons(database, seed)
            shutil.rmtree(store)
    print(report("all", found))
    print(report("the next ten", [one for one in found if one.true_position < 10]))
    print(report("later ones", [one for one in found if one.true_position >= 10]))


if __name__ == "__main__":
    main()

"""Measure the performance claims of the service: `python -m benchmarks.service [claim…]`.

Each claim is measured in the embedded mode (SQLite) and in lab mode (PostgreSQL, Redis), with the
processes that users run. Latencies are measured by a client on the same machine.
"""

import argparse
import os
import platform
import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.orm import Session

from benchmarks import asking, dashboard, large, listening, peer, queries, scale, sharing
from benchmarks.figures import Figure, percentile
from benchmarks.modes import LONG, MODES, SMALL, running
from mptlab import Client, serve
from service.accounts.models import OWN, Project, ProjectMember, User
from service.db.engine import Database
from service.experiments.models import Device, Experiment, Held, Queue, Usage, Wait
from service.queue import holds
from service.settings import Settings
from service.sweeps.models import Sweep
from service.vocabulary import Status
from tests.support.attempts import claimed
from tests.support.processes import Lab
from tests.support.starting import start_next
from worker.children import Spawned
from worker.runner import Runner
from worker.supervisor import Supervision

POINTS = 200_000
READERS = 2


def ready(settings: Settings) -> Iterator[Figure]:
    """Measure the time from the command to an API that is ready, five times."""
    lab = Lab(settings, settings.store / "log")
    took = []
    for _ in range(5):
        began = time.perf_counter()
        lab.start("api", "api", "--port", str(lab.port))
        lab.client()
        took.append(time.perf_counter() - began)
        lab.stop()
    yield Figure("start to ready, first", took[0], "s", at_most=2)
    yield Figure("start to ready, median", statistics.median(took), "s", at_most=2)


def start(settings: Settings) -> Iterator[Figure]:
    """Measure the time from submission to running on an idle slot by the database's clock: median
    of 10."""
    with running(settings) as client:
        delays = []
        for _ in range(10):
            time.sleep(0.5)
            ended = client.wait(client.submit(SMALL, cache=False)["id"], timeout_s=60)
            delays.append(_seconds(ended["started_at"]) - _seconds(ended["created_at"]))
    yield Figure("submission to running, median", statistics.median(delays), "s", at_most=1)
    yield Figure("submission to running, slowest", max(delays), "s")


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def many(settings: Settings) -> Iterator[Figure]:
    """Small experiments on one slot, from the first submission to the end of the last."""
    with running(settings) as client:
        began = time.perf_counter()
        made = [client.submit(DIGITS, cache=False)["id"] for _ in range(MANY)]
        for experiment_id in made:
            assert client.wait(experiment_id, timeout_s=300)["status"] == "succeeded"
        yield Figure(f"{MANY} small experiments", time.perf_counter() - began, "s", at_most=20)


MANY = 200
DIGITS: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"},
    "data": {"source": "digits"},
    "evaluate": {"masks": {"schedule": "fixed", "size": 3, "per_size": 20}},
    "compute": {"device": "cpu", "threads": 1},
}


def sweeps(settings: Settings) -> Iterator[Figure]:
    """A sweep of 1,000 points and a batch of 1,000 specs, each from the request to its answer: the
    median of 5, while a worker computes."""
    with running(settings) as client:
        client.submit(LONG, priority=100, cache=False)
        grid = {"spec": SMALL, "cache": False, "grid": {"seeds": [[i] for i in range(TOGETHER)]}}
        each = [{"spec": {**SMALL, "seeds": [i]}, "cache": False} for i in range(TOGETHER)]
        batch = {"experiments": each}
        for path, body in (("/v1/sweeps", grid), ("/v1/experiments:batch", batch)):
            took = []
            for _ in range(5):
                began = time.perf_counter()
                made = client._call("POST", path, json=body)
                took.append(time.perf_counter() - began)
                for one in made.get("items", ()):
                    client.delete(one["id"])
                if "id" in made:
                    client._call("DELETE", f"/v1/sweeps/{made['id']}")
            yield Figure(f"{TOGETHER:,} by {path}", statistics.median(took), "s", at_most=1)


TOGETHER = 1000


WRITER = f"""
import sys
sys.stdin.readline()
line = '{{"seq":%d,"record":"point","series":"score","labels":{{"seed":4}},"x":%d,"value":-1.25,' \
    '"std_err":0.01,"n":100}}'
for first in range(1, {POINTS} + 1, 1000):
    numbers = range(first, min(first + 1000, {POINTS} + 1))
    print("\\n".join(line % (seq, seq) for seq in numbers), flush=True)
print('{{"seq":null,"record":"end","count":{POINTS}}}', flush=True)
"""
"""Replaces mptcore, and writes points as fast as it can."""


def recording(settings: Settings) -> Iterator[Figure]:
    """Points through the supervisor while readers ask an API process for the curves."""
    api = Lab(settings, settings.store / "log")
    api.start("api", "api", "--port", str(api.port))
    try:
        with closing(Database(settings.url)) as database, api.client() as client:
            claim = claimed(database, SMALL)
            stopping = threading.Event()
            with ThreadPoolExecutor(READERS) as pool:
                reads = [
                    pool.submit(_read, client, claim.experiment_id, stopping)
                    for _ in range(READERS)
                ]
                began = time.perf_counter()
                writer = partial(Spawned, command=[sys.executable, "-c", WRITER])
                runner = Runner(writer, settings.store)
                ended = Supervision(database, settings, claim, runner).run(lambda: False)
                took = time.perf_counter() - began
                stopping.set()
            latencies = [latency for read in reads for latency in read.result()]
            (series,) = client.curves(claim.experiment_id, "score", max_points=POINTS)
    finally:
        api.stop()
    assert (ended, series["total_points"]) == ("succeeded", POINTS)
    assert series["x"] == list(range(1, POINTS + 1))
    yield Figure("recording", POINTS / took, "points/s", at_least=20_000)
    yield Figure("curves meanwhile, p50", percentile(latencies, 50), "ms")


def _read(client: Client, experiment_id: str, stopping: threading.Event) -> list[float]:
    latencies: list[float] = []
    while not stopping.wait(0.1):
        began = time.perf_counter()
        client.curves(experiment_id, max_points=1000)
        latencies.append(1000 * (time.perf_counter() - began))
    return latencies


USERS, ENDED = 50, 20_000
CLAIMS_MADE = 100
LIMIT_MS = 10


def claim(settings: Settings) -> Iterator[Figure]:
    """One claim, without its commit: the median among 10,000 queued experiments of 50 users, and
    among 100,000 of 1,000 users, without and with 100 projects."""
    for waiting, users, projects in ((10_000, USERS, 0), (100_000, 1000, 0), (100_000, 1000, 100)):
        with closing(Database(settings.url)) as database:
            _fill(database, waiting, users, projects)
            took, whole = [], []
            for i in range(CLAIMS_MADE):
                began = time.perf_counter()
                with database.transaction() as session:
                    assert start_next(session, f"w{i}", list(Queue)[i % 2]) is not None
                    session.flush()
                    took.append(1000 * (time.perf_counter() - began))
                whole.append(1000 * (time.perf_counter() - began))
        of = f"claim, {waiting:,} queued of {users:,} users"
        of += f" and {projects} projects" if projects else ""
        yield Figure(f"{of}, p50", percentile(took, 50), "ms", at_most=LIMIT_MS)
        yield Figure(f"{of}, p99", percentile(took, 99), "ms")
        yield Figure(f"{of}, committed, p50", percentile(whole, 50), "ms")


SWEEPS, POINTS_OF_SWEEP, HELD, BACKLOG = 100, 100, 20_000, 100_000


def idle(settings: Settings) -> Iterator[Figure]:
    """A look of a worker with many experiments that cannot run: 100 sweeps at their limit with 100
    held points each, 20,000 experiments of which half wait for the same one, and 100,000 queued
    ones of 50 users at their limits. And a look of the controller at all that are held."""
    with closing(Database(settings.url)) as database:
        _fill(database)
        with database.transaction() as session:
            _add_idle(session)
        _analyze(database)
        for at_limit in (False, True):
            if at_limit:
                with database.transaction() as session:
                    session.execute(update(User).where(User.id >= 100).values(max_running=0))
            took = _times(database, start_next)
            beside = ", users at their limits" if at_limit else ""
            yield Figure(f"beside idle sweeps{beside}, p50", percentile(took, 50), "ms",
                         at_most=LIMIT_MS)  # fmt: skip
        for name, step in (("waits", holds.release_waits), ("sweeps", holds.fill_sweeps)):
            took = _times(database, step)
            yield Figure(f"a look at idle {name}, p50", percentile(took, 50), "ms", at_most=50)


def standby(settings: Settings) -> Iterator[Figure]:
    """CPU time of a lab that has nothing to do, for 30 s: a controller, two API processes and three
    workers, without the database's and the broker's. The embedded mode has two processes."""
    lab = Lab(settings, settings.store / "log", times={})
    try:
        if settings.database_url is None:
            lab.start("api", "api", "--port", str(lab.port))
            lab.start("worker", "-m", "worker", "cpu", "--local")
        else:
            lab.start_all(3)
            lab.start("api2", "api", "--port", str(serve.free_port()))
        lab.client()
        time.sleep(25)  # until each has been idle for some time
        began, before = time.perf_counter(), _cpu_s(lab)
        time.sleep(30)
        spent_s = _cpu_s(lab) - before
        yield Figure("an idle lab's CPU time", 100 * spent_s / (time.perf_counter() - began),
                     "% of a core", at_most=2)  # fmt: skip
    finally:
        lab.stop()


def _cpu_s(lab: Lab) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in lab.family())


def _times(database: Database, step: Callable[[Session], object]) -> list[float]:
    took = []
    for _ in range(CLAIMS_MADE):
        began = time.perf_counter()
        with database.transaction() as session:
            step(session)
            session.flush()
            took.append(1000 * (time.perf_counter() - began))
    return took


def _add_idle(session: Session) -> None:
    common = {"owner_id": 1, "tags": [], "priority": 0, "spec": SMALL}
    sweeps = [f"{i:031x}s" for i in range(SWEEPS)]
    beside = {"concurrency": 1, "fields": ["seeds"], "comes_after": []}
    session.execute(insert(Sweep), [{**common, **beside, "id": one} for one in sweeps])
    first = {"held": Held.NOT, "status": Status.RUNNING, "queue": Queue.CPU}
    held = {"held": Held.SWEEP, "status": Status.QUEUED, "queue": None}
    points = [
        {**common, **(held if n else first), "id": f"{i:015x}{n:016x}p", "sweep_id": one}
        for i, one in enumerate(sweeps)
        for n in range(POINTS_OF_SWEEP)
    ]
    session.execute(insert(Experiment), points)
    after = [{**common, "id": f"{i:031x}w", "held": Held.AFTER} for i in range(HELD)]
    session.execute(insert(Experiment), after)
    ids = [points[0]["id"], *(one["id"] for one in after)]
    waits = [
        {"experiment_id": one, "after_id": ids[i if i % 2 else 0]} for i, one in enumerate(ids[1:])
    ]
    session.execute(insert(Wait), waits)
    queued = [
        {**common, "owner_id": 100 + i % (USERS - 1), "id": f"{i:031x}q"} for i in range(BACKLOG)
    ]
    session.execute(insert(Experiment), queued)


def _analyze(database: Database) -> None:
    if database.engine.dialect.name == "postgresql":  # as autovacuum does after some time
        with database.transaction() as session:
            session.execute(text("ANALYZE"))


def _fill(database: Database, waiting: int = 10_000, users: int = USERS, projects: int = 0) -> None:
    """Fill the store with queued and finished experiments and the usage of each user. Every second
    experiment of a user who is in a project is one of the project."""
    spec = SMALL
    devices = list(Device)
    with database.transaction() as session:
        session.execute(delete(Experiment).where(Experiment.status == Status.QUEUED))
        runs = update(Experiment).where(Experiment.status == Status.RUNNING)
        session.execute(runs.values(status=Status.SUCCEEDED))
        owners = [1, *range(100, 99 + users)]
        known = {*session.scalars(select(User.id))}
        session.add_all(User(id=i, name=f"user {i}") for i in owners if i not in known)
        session.flush()
        for i in owners:
            used_s = 10.0 * i
            used = {"settled_s": used_s, "charged_s": used_s, "as_of": time.time()}
            session.merge(Usage(owner_id=i, project_id=OWN, **used))
        in_project = _add_projects(session, owners, projects)
        first = int(session.scalar(select(func.max(Experiment.id))) or "0", 16) + 1
        rows = [
            {
                "id": f"{i:032x}",
                "owner_id": owners[i % users],
                "project_id": in_project.get(owners[i % users], OWN) if i // users % 2 else OWN,
                "spec": spec,
                "tags": [],
                "priority": i % 7,
                "device": devices[i % 3],
                "status": Status.SUCCEEDED if i < first + ENDED else Status.QUEUED,
            }
            for i in range(first, first + ENDED + waiting)
        ]
        session.execute(insert(Experiment), rows)
    _analyze(database)


def _add_projects(session: Session, owners: Sequence[int], projects: int) -> dict[int, int]:
    """Add projects with 1 to 10 members each, and their usage. Return one for each member."""
    in_project = {}
    for number in range(1, projects + 1):
        session.add(Project(id=number, name=f"project {number}", shares=1 + number % 3))
        session.flush()
        for i in range(1 + number % 10):
            owner = owners[(9 * number + i) % len(owners)]
            in_project[owner] = number
            session.add(ProjectMember(project_id=number, user_id=owner))
            used = {"settled_s": 5.0 * owner, "charged_s": 5.0 * owner, "as_of": time.time()}
            session.add(Usage(owner_id=owner, project_id=number, **used))
    return in_project


CLAIMS: dict[str, Callable[[Settings], Iterator[Figure]]] = {
    "requests": asking.requests,
    "polling": asking.polling,
    "ready": ready,
    "start": start,
    "many": many,
    "claim": claim,
    "idle": idle,
    "standby": standby,
    "sweeps": sweeps,
    "recording": recording,
    "curves": queries.curves,
    "slow_run": queries.slow_run,
    "list": queries.lists,
    "streams": listening.streams,
    "sharing": sharing.sharing,
    "metrics": scale.metrics,
    "large": large.large,
    "pages": dashboard.pages,
    "dashboards": dashboard.dashboards,
    "mlflow": peer.peer,
}


def machine() -> str:
    """Describe the machine and its other load before the measurement."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    packages = ("fastapi", "uvicorn", "pydantic", "SQLAlchemy", "psycopg")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{cpu}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before\n"
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {versions}"
    )


def main(names: Sequence[str] = (), only: str | None = None) -> None:
    """Measure these claims, or all, on these databases, or both, and print one table."""
    os.environ["MPT_RATE_PER_USER"] = "1000000"  # all that is asked is asked by one user
    print(machine())
    for mode, settings_of in MODES.items():
        if only not in (None, mode):
            continue
        print(f"\n{mode}")
        for name in names or CLAIMS:
            with settings_of() as settings:
                for figure in CLAIMS[name](settings):
                    print(f"  {figure}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("claim", nargs="*", choices=[[], *CLAIMS], default=[])
    parser.add_argument("--short", action="store_true", help="metrics of 100,000 experiments")
    parser.add_argument("--points", type=int, default=large.POINTS, help="of `large`, in all")
    parser.add_argument("--mode", choices=[*MODES], help="one of the two databases alone")
    arguments = parser.parse_args()
    if arguments.short:
        scale.EXPERIMENTS = scale.SHORT_EXPERIMENTS
    large.POINTS = arguments.points
    main(arguments.claim, arguments.mode)

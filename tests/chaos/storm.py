"""Real processes on real servers, killed and stopped at random; then the invariants.

`make chaos` runs the long form; the suite a short one.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import func, select, update

from mptlab import Client, NoAnswer, Refused
from service.accounts.models import User
from service.accounts.users import ensure_key
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import GAVE_WAY, Attempt, Experiment
from service.operations.prepare import prepare
from service.queue import giving_way
from service.queue.models import LEAD_S
from service.queue.states import is_terminal, request
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from tests.chaos.aftermath import false_failures, false_reaps, processes_of, say, starts_within
from tests.chaos.plan import BRIEF, LONG, Plan
from tests.support.disks import Disk, DiskUnavailable
from tests.support.invariants import Counts, Record, check
from tests.support.memory_limits import LimitUnavailable, MemoryLimit
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, signal_each, wait_until
from tests.support.servers import PostgreSQL, Redis
from tests.support.undisturbed import ENDLESS, KINDS, undisturbed_records

SPECS = {**KINDS, "endless": ENDLESS}
LARGE = ppca_spec(
    data__n=250_000,
    data__dim=100,
    evaluate__masks={"schedule": "fixed", "size": 5, "per_size": 2000},
)
"""A run of about 0.8 GiB. Two of them exceed the memory that a plan gives to both workers."""
MAY_FAIL = {"endless": "timeout"}
"""Expected failure of each kind of experiment that may fail by itself."""
SETTLE_S = 240.0
STALL_S = 20.0
ORPHAN_S = 30.0
LEASE_S = 3.0
SLICE_S = 4.0
"""Slice of all runs: long enough for a checkpoint, and shorter than many of them."""
NOTICE_S = 3.0
"""Time that workers have to notice that the disk is full."""
RESERVE_BYTES = 20 * 2**20
DISK_MIB = 300
CONTROLLERS = {"controller1": ("controller",), "controller2": ("controller",)}
WORKERS = {"worker1": ("worker", "cpu"), "worker2": ("worker", "cpu")}
LIMITS = {"second": 1, "third": 2}
"""Maximum number of concurrent runs of these users; the local user has no limit."""


@dataclass
class Tally:
    """Actions of the test, and possible causes of a lost attempt as (time, worker's name)."""

    done: dict[str, int] = field(default_factory=dict)
    blame: list[tuple[float, str]] = field(default_factory=list)
    full: list[tuple[float, float]] = field(default_factory=list)
    """Times within which the store's disk was full, and the workers had noticed it."""

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


class Storm:
    """A lab that is kept running, as a restart policy would, while it is disturbed."""

    def __init__(
        self,
        settings: Settings,
        postgresql: PostgreSQL,
        redis: Redis,
        plan: Plan,
        log: Path,
        disk: Disk | None = None,
        memory: MemoryLimit | None = None,
    ):
        """The store is on the disk, and the workers share the memory, where these are given."""
        self.settings = settings
        self.postgresql = postgresql
        self.redis = redis
        self.plan = plan
        self.disk = disk
        self.memory = memory
        self.specs = {**SPECS, **({} if memory is None else {"large": LARGE})}
        self.random = random.Random(plan.seed)
        self.lab = Lab(settings, log)
        self.tally = Tally()
        self.accepted: dict[str, list[Record]] = {}
        self.kinds: dict[str, str] = {}
        self.commands: dict[str, tuple[str, ...]] = {
            "api": ("api", "--port", str(self.lab.port)),
            **CONTROLLERS,
            **WORKERS,
        }
        self._calm = threading.Event()

    def run(self) -> tuple[Counts, dict[str, int]]:
        """Disturb, let it settle, stop; the invariants' counts, and the others that must be 0."""
        self._add_users()
        expected = {name: undisturbed_records(spec) for name, spec in self.specs.items()}
        for name in self.commands:
            self._start(name)
        with ThreadPoolExecutor(1) as beside:
            submitting = beside.submit(self._submit, expected)
            try:
                wait_until(lambda: bool(self.accepted), timeout_s=SETTLE_S, what="an experiment")
                self._disturb()
            finally:
                self._calm.set()
            submitting.result()
        database = Database(self.settings.url)
        self._settle(database)
        counts = check(database, self.accepted, fair_share=self.settings.share)
        with database.snapshot() as session:
            gave_way = select(func.count()).where(Attempt.outcome == GAVE_WAY)
            self.tally.done["runs that gave way"] = session.scalar(gave_way) or 0
        zeros = {
            "false reaps": false_reaps(database, self.tally.blame),
            "false failures": false_failures(database, self.kinds, MAY_FAIL, self.tally.full),
            "orphan processes": self._orphans(),
            "starts on a full disk": starts_within(database, self.tally.full),
        }
        database.close()
        return counts, zeros

    # Requests to the lab during the storm

    def _add_users(self) -> None:
        """Each has its own key; the local user has another one."""
        with closing(Database(self.settings.url)) as database, database.transaction() as session:
            for name, limit in LIMITS.items():
                ensure_key(session, name, self._key_file(name))
                session.execute(update(User).where(User.name == name).values(max_running=limit))

    def _key_file(self, name: str) -> Path:
        return self.settings.key_file.with_name(f"key-{name}")

    def _submit(self, expected: dict[str, list[Record]]) -> None:
        """Keep a few experiments of each waiting; a request without an answer is sent again."""
        files = [self.settings.key_file, *map(self._key_file, LIMITS)]
        pick = random.Random(self.plan.seed + 1)
        kinds = sorted(SPECS) + (0 if self.memory is None else len(SPECS)) * ["large"]
        url = f"http://127.0.0.1:{self.lab.port}"
        with ExitStack() as stack:
            clients = [
                stack.enter_context(Client(url, file.read_text().strip(), timeout_s=10))
                for file in files
            ]
            while not self._calm.is_set():
                client = pick.choice(clients)
                if self._outstanding(client) < self.plan.waiting:
                    kind = pick.choice(kinds)
                    made = self._insist(client, self.specs[kind], f"storm-{uuid.uuid4().hex}")
                    if made is not None:
                        self.accepted[made["id"]] = expected[kind]
                        self.kinds[made["id"]] = kind
                time.sleep(0.3)

    def _insist(self, client: Client, spec: Any, key: str) -> dict[str, Any] | None:
        while not self._calm.is_set():
            try:
                return client.submit(spec, idempotency_key=key, cache=False)
            except NoAnswer:
                time.sleep(0.2)
            except Refused as refused:
                if refused.status == 422:  # for ever
                    raise
                time.sleep(0.2)
        return None

    def _outstanding(self, client: Client) -> int:
        try:
            return sum(not e["terminal"] for e in client.experiments(limit=20))
        except (NoAnswer, Refused):
            return 99

    # Disturbances of the lab

    def _disturb(self) -> None:
        plan = self.plan
        deeds = (
            [self._kill] * plan.kills
            + [self._kill_container] * plan.container_kills
            + [self._stop_lab] * plan.lab_stops
            + [self._stop_past_lease] * plan.stops
            + [self._stop_controller] * plan.controller_stops
            + [self._flush] * plan.flushes
            + [self._restart_broker] * plan.broker_restarts
            + [self._black_hole] * plan.black_holes
            + [self._restart_database] * plan.database_restarts
            + [self._cancel] * plan.cancels
            + [self._pause] * plan.pauses
            + [self._displace] * plan.displacements
            + [self._stall] * plan.stalls
            + [self._slow_disk] * plan.slow_disks
            + [self._failover] * plan.failovers
            + [self._full_disk] * (0 if self.disk is None else plan.disk_fills)
        )
        self.random.shuffle(deeds)
        if plan.database_away_s:
            deeds.insert(len(deeds) // 2, self._database_away)
        for i, deed in enumerate(deeds):
            time.sleep(self.random.uniform(*self.plan.every_s))
            deed()
            self._revive()
            self.tally.count(deed.__name__.strip("_").replace("_", " "))
            if i % 20 == 0:
                say(f"{i}/{len(deeds)} disturbances, {len(self.accepted)} experiments accepted")

    def _kill(self) -> None:
        """Kill a random runner, worker, controller or API by SIGKILL."""
        kind = self.random.choice(["runner", "worker", "controller", "api"])
        names = {"controller": [*CONTROLLERS], "api": ["api"]}.get(kind, [*WORKERS])
        victim: psutil.Process = self.lab.processes[self.random.choice(names)]
        if kind in ("runner", "worker"):
            self.tally.blame.append((time.time(), f":{victim.pid}"))
        if kind == "runner":
            children = victim.children(recursive=True)  # the warm parent, and its run
            if not children:
                return
            victim = self.random.choice(children)
        signal_each([victim], signal.SIGKILL)

    def _kill_container(self) -> None:
        """Kill all processes of one part or server at once, as when its container is killed."""
        name = self.random.choice([*self.commands, "redis", "postgresql"])
        if name == "redis":
            self._restart_broker()
        elif name == "postgresql":
            self._restart_database()
        else:
            victim: psutil.Process = self.lab.processes[name]
            if name in WORKERS:
                self.tally.blame.append((time.time(), f":{victim.pid}"))
            signal_each((victim, *victim.children(recursive=True)), signal.SIGKILL)

    def _stop_lab(self) -> None:
        """Stop all parts by SIGTERM, then both servers, and start all again: a stop of the
        containers costs no attempt."""
        self.lab.stop()
        self.redis.stop()
        self.postgresql.stop("fast")
        time.sleep(self.random.uniform(0, 2 * LEASE_S))
        self.postgresql.start()
        self.redis.start()

    def _stop_past_lease(self) -> None:
        """SIGSTOP of a worker, but not of its runner, for longer than its lease; SIGCONT."""
        worker = self.lab.processes[self.random.choice([*WORKERS])]
        self.tally.blame.append((time.time(), f":{worker.pid}"))
        worker.suspend()
        time.sleep(LEASE_S * self.random.uniform(0.5, 2.5))
        worker.resume()
        self.tally.blame.append((time.time(), f":{worker.pid}"))

    def _stop_controller(self) -> None:
        """SIGSTOP of a controller, perhaps inside a transaction, for longer than it leads."""
        controller = self.lab.processes[self.random.choice([*CONTROLLERS])]
        controller.suspend()
        time.sleep(self.random.uniform(0.5, 2 * LEAD_S))
        controller.resume()

    def _flush(self) -> None:
        self.redis.flush()

    def _restart_broker(self) -> None:
        self.redis.stop()
        time.sleep(self.random.uniform(0, 2))
        self.redis.start()

    def _black_hole(self) -> None:
        self.redis.freeze()
        time.sleep(self.random.uniform(2, 8))
        self.redis.thaw()

    def _restart_database(self) -> None:
        self.postgresql.restart()

    def _database_away(self) -> None:
        say(f"the database is away for {self.plan.database_away_s:.0f} s")
        self.postgresql.stop()
        time.sleep(self.plan.database_away_s)
        self.postgresql.start()

    def _cancel(self) -> None:
        self._ask(DesiredState.CANCEL)

    def _pause(self) -> None:
        """Pause a run, and resume it a little later."""
        paused = self._ask(DesiredState.PAUSE)
        time.sleep(self.random.uniform(0, 3))
        self._ask(DesiredState.RUN, paused)

    def _displace(self) -> None:
        """Ask all runs to give way to others, as the controller asks those that have had their
        slice. It withdraws what helps nobody, unless they have saved before."""
        with closing(Database(self.settings.url)) as database, database.transaction() as session:
            ids = select(Experiment.id)
            running = session.scalars(ids.where(Experiment.status == Status.RUNNING)).all()
            waiting = session.scalars(ids.where(Experiment.status == Status.QUEUED)).all()
            others = waiting or ["none"]
            chosen = {one: self.random.choice(others) for one in running}
            giving_way.ask(session, giving_way.Decision(chosen, {}))

    def _ask(self, desired: DesiredState, experiment_id: str | None = None) -> str | None:
        """Request a change of a running experiment, if there is one, as the API does."""
        database = Database(self.settings.url)
        try:
            with database.transaction() as session:
                running = select(Experiment.id).where(Experiment.status == Status.RUNNING)
                chosen = experiment_id or session.scalar(running.limit(1))
                if chosen is not None:
                    request(session, chosen, desired)
                return chosen
        finally:
            database.close()

    def _stall(self) -> None:
        """SIGSTOP of a runner for longer than a run may be silent."""
        workers = [self.lab.processes[name] for name in WORKERS]
        parents = [parent for worker in workers for parent in worker.children()]
        runners = [runner for parent in parents for runner in parent.children()]
        signal_each(runners, signal.SIGSTOP)
        time.sleep(STALL_S + 3)
        signal_each(runners, signal.SIGCONT)

    def _slow_disk(self) -> None:
        self.postgresql.freeze()
        time.sleep(self.random.uniform(1, 2 * LEASE_S))
        self.postgresql.thaw()

    def _full_disk(self) -> None:
        """Fill the store's disk, at times for longer than a run may be silent."""
        assert self.disk is not None
        with self.disk.full():
            began = time.time()
            time.sleep(self.random.choice([STALL_S / 4, STALL_S + 10]))
            self.tally.full.append((began + NOTICE_S, time.time()))

    def _failover(self) -> None:
        """Switch to a standby that does not accept writes yet."""
        name = self.settings.url.rpartition("/")[2]
        self.postgresql.set_read_only(name, True)
        time.sleep(self.random.uniform(1, 4))
        self.postgresql.set_read_only(name, False)

    def _revive(self) -> None:
        """Restart stopped processes, as a restart policy does."""
        for name in self.commands:
            if self.lab.processes[name].poll() is not None:
                self._start(name)

    def _start(self, name: str) -> None:
        more = {
            "SHARE__SLICE_S": SLICE_S,
            "LEASE_S": LEASE_S,
            "STALL_S": STALL_S,
            "RESERVE_BYTES": RESERVE_BYTES,
        }
        given = {f"MPT_{key}": str(value) for key, value in more.items()}
        process = self.lab.start(name, *self.commands[name], **given)
        if self.memory is not None and name in WORKERS:
            self.memory.add(process.pid)

    # Invariants after the storm

    def _settle(self, database: Database) -> None:
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            self._revive()
            try:
                with database.transaction() as session:
                    paused = select(Experiment.id).where(Experiment.status == Status.PAUSED)
                    for experiment_id in session.scalars(paused).all():
                        request(session, experiment_id, DesiredState.RUN)
                    states = session.scalars(select(Experiment.status)).all()
            except TRANSIENT_DB_ERRORS:
                states = [""]
            if all(is_terminal(status) for status in states):
                return
            time.sleep(1)

    def _orphans(self) -> int:
        """Processes of the lab that are left 30 s after it was stopped."""
        store = str(self.settings.store)
        self.lab.stop()
        deadline = time.monotonic() + ORPHAN_S
        while (left := processes_of(store)) and time.monotonic() < deadline:
            time.sleep(0.5)
        for process in left:
            process.kill()
        return len(left)


def summary(tally: Tally, counts: Counts, zeros: dict[str, int]) -> str:
    done = ", ".join(f"{count} × {what}" for what, count in sorted(tally.done.items()))
    others = ", ".join(f"{name} {count}" for name, count in zeros.items())
    return f"storm: {done}; {counts}, {others}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="of minutes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    plan = replace(BRIEF if options.short else LONG, seed=options.seed)
    missing: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        postgresql, redis = PostgreSQL(folder), Redis(folder)
        postgresql.start()
        redis.start()
        postgresql.create("storm")
        store, disk, memory = folder / "store", None, None
        try:
            disk = Disk(folder, "disk", DISK_MIB)
            stack.callback(disk.detach)
            store = disk.folder / "store"
        except DiskUnavailable as error:
            missing.append(f"full disks did not run: {error}")
        try:
            memory = MemoryLimit(plan.memory_mib * 2**20)
            stack.callback(memory.remove)
        except LimitUnavailable as error:
            missing.append(f"large runs did not run: {error}")
        settings = Settings(
            store=store,
            database_url=postgresql.url("storm"),
            redis_url=redis.new_url(),
        )
        prepare(settings)
        storm = Storm(settings, postgresql, redis, plan, folder / "lab.log", disk, memory)
        counts, zeros = storm.run()
        if memory is not None:
            say(f"the kernel killed {memory.kills} processes for lack of memory")
        postgresql.stop()
        redis.stop()
        clean = counts.clean and not any(zeros.values())
        if not clean:
            shutil.copy(storm.lab.log, "storm.log")
            say("the lab's log is kept in storm.log")
    for line in missing:
        say(line)
    say(summary(storm.tally, counts, zeros))
    return 0 if clean and not missing else 1


if __name__ == "__main__":
    sys.exit(main())

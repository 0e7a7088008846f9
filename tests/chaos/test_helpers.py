"""Runs that other workers help, while helpers and the runs themselves are killed at random, and the
runs are paused and resumed."""

import random
import time
from contextlib import closing, suppress
from typing import Any

import psutil
import pytest
from sqlalchemy import func, select

from service.queue import states
from service.settings import Settings
from service.tables.engine import Database
from service.tables.experiments import DesiredState, Experiment, Status
from service.tables.helpers import Help
from tests.support.attempts import submitted
from tests.support.forks import fork
from tests.support.invariants import Record, check
from tests.support.processes import Lab
from tests.support.undisturbed import undisturbed_records
from tests.support.vae_specs import deep_vae

WORKERS = 3
KILLS = 5
LIMIT_S = 600.0
SHARED = {"MPT_MAX_WORKERS": str(WORKERS), "MPT_HELP_AFTER_S": "0.3", "MPT_LEASE_S": "5",
          "MPT_DEAF_S": "60"}  # fmt: skip
SLOW: dict[str, Any] = {
    "model": deep_vae(latent_dim=4, width=64, draws=32, rounds=3),
    "data": {"source": "ppca", "n": 400, "dim": 64, "latent_dim": 4, "noise_precision": 4.0,
             "seed": 3},
    "compute": {"threads": 1, "precision": "float32", "device": "cpu"},
    "seeds": [1],
}  # fmt: skip
"""A mask takes ten to thirty milliseconds. All that comes before the masks is computed again in
each attempt and in each help, so it is short."""
FIXED = {
    **SLOW,
    "evaluate": {"lml": {"method": "iwae", "samples": 2},
                 "masks": {"schedule": "fixed", "rate": 0.33, "per_size": 180}},
}  # fmt: skip
TARGET = {
    **SLOW,
    "evaluate": {"lml": {"method": "iwae", "samples": 2}, "target_std_err": 0.02, "max_masks": 500,
                 "masks": {"schedule": "sizes", "sizes": [3, 30, 60]}},
}  # fmt: skip


def commands(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Processes of a lab by name; a lab on SQLite has embedded workers alone."""
    names = [f"worker{i}" for i in range(WORKERS)]
    if settings.database_url is None:
        return dict.fromkeys(names, ("-m", "worker.local"))
    beside = {"dispatcher": ("dispatcher",), "reaper": ("reaper",)}
    return {**beside, **dict.fromkeys(names, ("worker", "cpu"))}


class HelpedLab:
    """A lab whose processes are killed and started again."""

    def __init__(self, settings: Settings):
        self.lab = Lab(settings, settings.store / "lab.log", fork)
        self.commands = commands(settings)
        self.chance = random.Random(1)

    def revive(self) -> None:
        for name, command in self.commands.items():
            process = self.lab.processes.get(name)
            if process is None or process.poll() is not None:
                self.lab.start(name, *command, **SHARED)

    def kill(self) -> None:
        """Kill a worker or, twice as often, what a worker runs: a run or a help."""
        worker = self.lab.processes[f"worker{self.chance.randrange(WORKERS)}"]
        with suppress(psutil.NoSuchProcess):  # it has ended by itself
            runners = [one for parent in worker.children() for one in parent.children()]
            victim: psutil.Process = self.chance.choice([worker, *runners, *runners])
            victim.kill()


@pytest.fixture(scope="module")
def expected() -> list[tuple[dict[str, Any], list[Record]]]:
    """Both specs with the records of their undisturbed runs."""
    return [(spec, undisturbed_records(spec)) for spec in (FIXED, TARGET)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["settings", "lab"])
def test_kills_of_helpers_and_runs_change_no_record(
    kind: str,
    expected: list[tuple[dict[str, Any], list[Record]]],
    request: pytest.FixtureRequest,
) -> None:
    """On SQLite with embedded workers, and on PostgreSQL with Redis. A fixed number of masks, and
    rounds up to a target error."""
    settings: Settings = request.getfixturevalue(kind)
    with closing(Database(settings.url)) as database:
        accepted = {submitted(database, spec): records for spec, records in expected}
        lab = HelpedLab(settings)
        deadline = time.monotonic() + LIMIT_S
        kills = pauses = 0
        try:
            while not _ended(database) or _helps(database):  # that of a killed helper ends later
                assert time.monotonic() < deadline, "the experiments did not end in time"
                lab.revive()
                time.sleep(lab.chance.uniform(0.5, 2.5))
                if kills < KILLS and _helps(database):
                    lab.kill()
                    kills += 1
                    pauses += kills % 2 and _pause_or_resume(database, DesiredState.PAUSE)
                else:
                    _pause_or_resume(database, DesiredState.RUN)
            time.sleep(0.5)
        finally:
            lab.lab.stop()
        counts = check(database, accepted, fair_share=settings.share)
        assert counts.clean, str(counts)
        with database.snapshot() as session:
            statuses = session.scalars(select(Experiment.status)).all()
            assert set(statuses) == {Status.SUCCEEDED}
            assert session.scalar(select(func.sum(Help.batches)))
            assert kills > 0
            assert pauses > 0


def _pause_or_resume(database: Database, desired: DesiredState) -> int:
    """Pause all running experiments, or resume those that are paused, and return how many."""
    status = Status.RUNNING if desired == DesiredState.PAUSE else Status.PAUSED
    with database.transaction() as session:
        found = session.scalars(select(Experiment.id).where(Experiment.status == status)).all()
        for experiment_id in found:
            states.request(session, experiment_id, desired)
    return len(found)


def _ended(database: Database) -> bool:
    with database.snapshot() as session:
        return all(
            states.is_terminal(status) for status in session.scalars(select(Experiment.status))
        )


def _helps(database: Database) -> int:
    with database.snapshot() as session:
        return session.scalar(select(func.count()).where(Help.ended_at.is_(None))) or 0

"""Delete old experiments, and purge the files of deleted ones: `python -m
service.operations.retention`."""

import argparse
import math
import os
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path

from service.accounts import audit
from service.accounts.users import HOUSEKEEPING
from service.db.engine import Database
from service.experiments import deletion
from service.experiments.deletion import Kept
from service.operations.start import begin
from service.queue import ledger, sizes
from service.settings import Settings
from service.submission import idempotency
from service.sweeps import store as sweeps

DAY_S = 86_400.0
GIB = 2**30
MEASURED_AT_ONCE = 10_000
"""Maximum number of artifacts that are measured in an hour."""
DELETED_AT_ONCE = 100
"""Maximum number of experiments that one transaction hides."""
PURGED_AT_ONCE = 1000
"""Maximum number of experiments without records that one transaction purges."""
NEVER_STARTED_KEPT_S = DAY_S
"""Time for which an experiment is kept that was cancelled before its first attempt."""


@dataclass(frozen=True, slots=True)
class Removal:
    """An experiment to delete: owner, cause and size of its files."""

    experiment_id: str
    owner: str
    why: str
    bytes: int


def planned(database: Database, settings: Settings) -> Iterator[Removal]:
    """Yield the experiments that have been kept long enough. They are hidden first, and purged
    later."""
    before = -math.inf
    if settings.keep_s is not None:
        with database.snapshot() as session:
            before = deletion.cutoff(session, settings.keep_s)
            owners = deletion.owners(session)
        for owner_id in owners:
            old = _pages(database, partial(deletion.older, owner_id=owner_id, before=before))
            yield from (_removal(settings, one, _age(settings)) for one in old if one.removable)
    if settings.keep_user_bytes is not None:
        filed = _pages(database, deletion.with_files)
        yield from _beyond_quota(settings, (one for one in filed if not _is_gone(one, before)))


def _pages(database: Database, page: Callable[..., list[Kept]]) -> Iterator[Kept]:
    """Yield the experiments of all pages. Each is read by a statement of its own."""
    after: Kept | None = None
    while True:
        with database.snapshot() as session:
            found = page(session, after=after)
        yield from found
        if len(found) < deletion.PAGE:
            return
        after = found[-1]


def _is_gone(one: Kept, before: float) -> bool:
    """Return whether an experiment is deleted, or is removed because of its age."""
    return one.is_deleted or (one.removable and one.at is not None and one.at < before)


def _beyond_quota(settings: Settings, kept: Iterable[Kept]) -> Iterator[Removal]:
    """Yield each user's oldest experiments until the rest is within the quota."""
    quota = settings.keep_user_bytes or 0
    total: dict[str, int] = defaultdict(int)
    removable = []
    for one in kept:
        removal = _removal(settings, one, _quota(settings))
        total[one.owner] += removal.bytes
        if one.removable and removal.bytes:
            removable.append((one.at, removal))
    removable.sort(key=itemgetter(0))
    for _, removal in removable:
        if total[removal.owner] > quota:
            total[removal.owner] -= removal.bytes
            yield removal


def delete(database: Database, removals: Iterable[Removal]) -> None:
    """Hide these experiments, each with a line in the audit log."""
    left = iter(removals)
    while some := [*islice(left, DELETED_AT_ONCE)]:
        with database.transaction() as session:
            hidden = set(deletion.remove_ended(session, [one.experiment_id for one in some]))
            for one in some:
                if one.experiment_id in hidden:
                    audit.note(
                        session, HOUSEKEEPING, "experiment.deleted", one.experiment_id, why=one.why
                    )


def purgeable(database: Database, settings: Settings) -> Iterator[Removal]:
    """Yield the experiments that were deleted longer ago than the settings say."""
    with database.snapshot() as session:
        before = deletion.cutoff(session, settings.purge_after_s)
    why = f"deleted more than {settings.purge_after_s / DAY_S:g} days ago"
    for one in _pages(database, partial(deletion.purgeable, before=before)):
        if one.removable:
            yield _removal(settings, one, why)


def never_started(database: Database) -> Iterator[Removal]:
    """Yield the experiments to purge because they were cancelled before their first attempt, more
    than a day ago. A script that submits and cancels must not fill the database's disk."""
    with database.snapshot() as session:
        before = deletion.cutoff(session, NEVER_STARTED_KEPT_S)
    for kept in _pages(database, partial(deletion.never_started, before=before)):
        if kept.removable:
            yield Removal(kept.id, kept.owner, "cancelled a day ago, before its first attempt", 0)


def purge_never_started(database: Database, removals: Iterable[Removal]) -> None:
    """Delete the rows of these experiments, many in a transaction. The audit log gets a line for
    each owner: a line for each experiment would stay for ever."""
    remaining = iter(removals)
    while page := [*islice(remaining, PURGED_AT_ONCE)]:
        with database.transaction() as session:
            ids = [removal.experiment_id for removal in page]
            purged = {*deletion.purge_never_started(session, ids)}
            numbers = Counter(one.owner for one in page if one.experiment_id in purged)
            for owner, number in numbers.items():
                audit.note(session, HOUSEKEEPING, "experiments.purged", owner, experiments=number)


def purge(database: Database, settings: Settings, removals: Iterable[Removal]) -> None:
    """Remove files and rows. Files are removed first: after a crash the row still exists and the
    next run finishes it. Old idempotency keys are deleted too."""
    with database.transaction() as session:
        ledger.fold(session, settings.share)
    for one in removals:
        for folder in _folders(settings, one.experiment_id):
            shutil.rmtree(folder, ignore_errors=True)
        with database.transaction() as session:
            if deletion.purge(session, one.experiment_id):
                audit.note(session, HOUSEKEEPING, "experiment.purged", one.experiment_id)
    with database.transaction() as session:
        sweeps.purge(session, settings.purge_after_s)
        idempotency.purge(session)


def measure_artifacts(database: Database, settings: Settings) -> None:
    """Store the sizes of artifacts that were recorded before sizes were."""
    with database.snapshot() as session:
        found = sizes.unmeasured_artifacts(session, MEASURED_AT_ONCE)
    for artifact in found:
        try:
            folder = settings.artifacts(artifact.experiment_id, artifact.attempt)
            size = (folder / artifact.file).stat().st_size
        except FileNotFoundError:
            size = 0
        with database.transaction() as session:
            sizes.set_size(session, artifact, size)


def _removal(settings: Settings, one: Kept, why: str) -> Removal:
    files = (
        path
        for folder in _folders(settings, one.id)
        for path in folder.rglob("*")
        if path.is_file()
    )
    return Removal(one.id, one.owner, why, sum(path.stat().st_size for path in files))


def _folders(settings: Settings, experiment_id: str) -> tuple[Path, Path]:
    return settings.all_artifacts(experiment_id), settings.checkpoints(experiment_id)


def _age(settings: Settings) -> str:
    assert settings.keep_s is not None
    return f"ended more than {settings.keep_s / DAY_S:g} days ago"


def _quota(settings: Settings) -> str:
    assert settings.keep_user_bytes is not None
    return f"its owner's files are more than {settings.keep_user_bytes / GIB:g} GiB"


def by_cause(removals: Iterable[Removal]) -> dict[tuple[str, str], list[int]]:
    """Return the sizes by owner and cause."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in removals:
        found[one.owner, one.why].append(one.bytes)
    return found


def report(verb: str, removals: Sequence[Removal]) -> Iterator[str]:
    """Yield a line for each owner and cause, and one for the total."""
    for (owner, why), found in by_cause(removals).items():
        yield f"{verb} {_amount(found)} of {owner}: {why}"
    yield f"{verb} {_amount([one.bytes for one in removals])} in all"


def _amount(sizes: Sequence[int]) -> str:
    noun = "experiment" if len(sizes) == 1 else "experiments"
    return f"{len(sizes)} {noun} ({sum(sizes):,} bytes of files)"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m service.operations.retention", description=__doc__
    )
    parser.add_argument("--dry-run", action="store_true")
    dry = parser.parse_args().dry_run
    settings = begin()
    with closing(Database(settings.url)) as database:
        kept, deleted = [*planned(database, settings)], [*purgeable(database, settings)]
        unstarted = [*never_started(database)]
        delete_verb, purge_verb = ("would delete", "would purge") if dry else ("deletes", "purges")
        for line in (*report(delete_verb, kept), *report(purge_verb, [*deleted, *unstarted])):
            sys.stdout.write(line + os.linesep)
        if not dry:
            delete(database, kept)
            purge(database, settings, deleted)
            purge_never_started(database, unstarted)


if __name__ == "__main__":
    main()

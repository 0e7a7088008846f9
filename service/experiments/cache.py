"""The result cache: an experiment that succeeded answers for a submission that would compute the
same. The key is of the spec, of the core's sources and libraries, and of all that is read.

A file of the lab's folders is known by its name, size and times and not by its content: the key
must say what a run will read that begins later. A file that was changed has another time of change,
which no one sets back, even where its content is put back; so the result of a run that read the
changed file is never found by the key of what was there before or after. Uploads and kept weights
never change, and are known by their digests. What is not in sight, a hub's above all, has no key.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Row, case, select
from sqlalchemy.orm import Session

from mptcore.protocol.code import CORE_DIGITS, core_digest
from service.experiments.models import Experiment, Status
from service.sharing import readable, reader

BESIDE = ("name", "tags", "note", "visibility")


def key_of(spec: Mapping[str, Any], inputs: Iterable[str]) -> str:
    """Return the key of a stored spec and its inputs."""
    text = json.dumps([spec, sorted(inputs)], sort_keys=True)
    rest = hashlib.sha256(text.encode()).hexdigest()
    return core_digest() + rest[: 64 - CORE_DIGITS]


def fingerprint(files: Collection[Path]) -> str | None:
    """Return a fingerprint of these files that changes when they change, or None if there are none
    or one is not visible."""
    try:
        stats = [(str(path), path.stat()) for path in sorted(files)]
    except OSError:
        return None
    parts = [(name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats]
    return json.dumps(parts) if parts else None


def own_key_only() -> ColumnElement[str | None]:
    """Return the key of an experiment that is claimed here. It is null if this worker's core
    differs from that of the service that made the key."""
    return case(
        (Experiment.cache_key.startswith(core_digest(), autoescape=True), Experiment.cache_key),
        else_=None,
    )


class Hits:
    """Succeeded experiments that the reader may see, by key."""

    def __init__(self, rows: Iterable[Row[Any]] = ()):
        self._rows: dict[str, list[Row[Any]]] = defaultdict(list)
        for row in rows:
            self._rows[row.cache_key].append(row)

    def id_for(self, key: str | None, beside: Mapping[str, Any] | None = None) -> str | None:
        """Return the experiment that answers a submission, or None. It must also have the given
        fields beside the spec, so that nothing is ignored. The reader's own experiments come first,
        then the latest."""
        for row in self._rows.get(key or "", ()):
            if all(getattr(row, name) == value for name, value in (beside or {}).items()):
                found: str = row.id
                return found
        return None


def hits(session: Session, reader_id: int, keys: Iterable[str | None]) -> Hits:
    """Return the experiments that may answer specs with these keys."""
    wanted = {key for key in keys if key is not None}
    if not wanted:
        return Hits()
    found = session.execute(
        select(Experiment.cache_key, Experiment.id, *(getattr(Experiment, one) for one in BESIDE))
        .where(
            Experiment.cache_key.in_(wanted),
            Experiment.status == Status.SUCCEEDED,
            Experiment.deleted_at.is_(None),
            readable(Experiment),
        )
        .order_by((Experiment.owner_id == reader_id).desc(), Experiment.id.desc()),
        reader(reader_id),
    )
    return Hits(found)

"""The result cache: a submission is answered by a successful experiment that computed the same.

The key is made from the spec, the core's sources and libraries, the sources of the package of a
family from outside, and all inputs. A file of the lab's folders enters with its name, size and
times, not with its content. A changed file has another time of change, even if its old content is
restored. So a result is never found under the key of another version of the file. Uploads and saved
weights never change, and enter with their digests. Specs with invisible inputs, such as those of a
hub, have no key."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from mptcore.protocol.code import CORE_DIGITS, code_digest
from mptcore.specs import ExperimentSpec
from service.db.visibility import readable, reader
from service.experiments.inputs import Inputs
from service.experiments.models import Experiment
from service.experiments.references import ReferencedInputs
from service.experiments.schemas import Submission
from service.vocabulary import Status, Visibility

BESIDE = ("name", "tags", "note", "visibility")
MAX_EARLIER = 100
"""Maximum number of earlier experiments of a key that are compared with a submission."""


def fingerprint(files: Collection[Path]) -> str | None:
    """Return a fingerprint of these files that changes when they change, or None if there are none
    or one is not visible."""
    try:
        stats = [(str(path), path.stat()) for path in sorted(files)]
    except OSError:
        return None
    parts = [(name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats]
    return json.dumps(parts) if parts else None


@dataclass(frozen=True)
class CacheKeys:
    """The keys of the specs of one request. Each set of files is checked once."""

    inputs: ReferencedInputs
    files: Inputs
    _fingerprints: dict[tuple[Path, ...], str | None] = field(default_factory=lambda: {(): ""})

    def key(self, spec: ExperimentSpec, document: dict[str, Any]) -> str | None:
        """Return the key of a spec, or None if the files that the spec reads cannot be identified.
        `document` is the spec as it is stored."""
        digests, files = self.inputs.digests(spec), self.files.files(spec)
        if digests is None or files is None:
            return None
        read = tuple(files)
        if read not in self._fingerprints:
            self._fingerprints[read] = fingerprint(files)
        found = self._fingerprints[read]
        if found is None:
            return None
        text = json.dumps([document, sorted([*digests, found])], sort_keys=True)
        digits = hashlib.sha256(text.encode()).hexdigest()
        return code_digest(spec.model.family) + digits[: 64 - CORE_DIGITS]


EarlierResults = Mapping[str | None, Sequence[Row[Any]]]
"""Succeeded experiments by key, each key's in the order in which they are preferred."""


def earlier_results(session: Session, reader_id: int, keys: Iterable[str | None]) -> EarlierResults:
    """Return the experiments with these keys that the reader may see: the reader's own come first,
    then the latest, at most MAX_EARLIER of a key."""
    found: dict[str | None, list[Row[Any]]] = defaultdict(list)
    wanted = {key for key in keys if key is not None}
    if not wanted:
        return found
    order = (Experiment.owner_id == reader_id).desc(), Experiment.id.desc()
    place = func.row_number().over(partition_by=Experiment.cache_key, order_by=order)
    placed = (
        select(Experiment.id, place.label("place"))
        .where(
            Experiment.cache_key.in_(wanted),
            Experiment.status == Status.SUCCEEDED,
            readable(Experiment),
        )
        .subquery()
    )
    first = select(placed.c.id).where(placed.c.place <= MAX_EARLIER)
    beside = (getattr(Experiment, name) for name in BESIDE)
    columns = (Experiment.cache_key, Experiment.id, Experiment.project_id, *beside)
    query = select(*columns).where(Experiment.id.in_(first)).order_by(*order)
    for row in session.execute(query, reader(reader_id)):
        found[row.cache_key].append(row)
    return found


def answer_of(
    earlier: Sequence[Row[Any]], submission: Submission, visibility: Visibility, project_id: int
) -> str | None:
    """Return the experiment that answers a submission into a project, or None. Its other fields,
    such as the name, must equal the given ones, so that nothing is ignored. What is open to others
    is answered by what they may read, too; a private submission by any."""
    given = submission.model_dump(include={*BESIDE}, exclude_defaults=True) if earlier else {}
    given["visibility"] = None if visibility == Visibility.PRIVATE else visibility
    if visibility == Visibility.PROJECT:
        given["project_id"] = project_id
    for row in earlier:
        if all(value in (None, getattr(row, name)) for name, value in given.items()):
            id: str = row.id
            return id
    return None

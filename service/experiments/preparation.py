"""Prepare submissions before the transaction that stores them.

To check thousands of specs and to estimate their memory takes seconds, and other users' writes wait
for a transaction that writes. So everything that takes long is computed here, without a lock.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from mptcore.specs import MAX_PROBLEMS, ExperimentSpec, Problem, SpecError, stored_spec
from service.experiments.cache import answer_of, earlier_results, fingerprint, key_of
from service.experiments.inputs import Inputs
from service.experiments.references import ReferencedInputs, after_problems, reference_problems
from service.experiments.schemas import Submission
from service.queue.memory import Memory, MemoryModel
from service.queue.sizes import POINT_BYTES, of_texts
from service.refusals import invalid
from service.settings import Settings
from service.tables.experiments import Experiment, Held
from service.tables.visibility import Visibility

BESIDE = ("name", "tags", "note", "priority", "visibility")
"""Fields of a submission that become columns as they are."""


class Entry(NamedTuple):
    """A submission of a request."""

    submission: Submission
    in_request: Callable[[Problem], Problem] = lambda problem: problem
    """Translates a problem of the submission to its place in the request."""
    retry_of: Experiment | None = None


class Submissions(NamedTuple):
    """The submissions of a request, and the owner of the experiments."""

    owner_id: int
    entries: Sequence[Entry]


def retry_entry(old: Experiment, in_request: Callable[[Problem], Problem] = lambda p: p) -> Entry:
    """Return the submission of a new experiment like an old one. Raises ApiError where the spec is
    not accepted any more."""
    beside = {name: getattr(old, name) for name in BESIDE}
    beside["visibility"] = Visibility(old.visibility)
    try:
        spec = stored_spec(old.spec)
    except SpecError as error:
        raise invalid(error.within("/spec")) from None
    after = old.comes_after or []
    submission = Submission.model_construct(spec=spec, after=after, cache=False, **beside)
    return Entry(submission, in_request, old)


class PreparedExperiment(NamedTuple):
    """The columns of a new experiment, or the earlier experiment that answers a submission."""

    columns: dict[str, Any]
    unfinished: Sequence[str] = ()
    """The experiments that it waits for."""
    cached_from: str | None = None
    retry_of: Experiment | None = None


class Prepared(NamedTuple):
    """Prepared experiments, and the inputs that they refer to."""

    experiments: Sequence[PreparedExperiment]
    inputs: ReferencedInputs


def prepare(session: Session, settings: Settings, submissions: Submissions) -> Prepared:
    """Check submissions and prepare their experiments. Raises ApiError."""
    owner_id, entries = submissions
    specs = [one.submission.spec for one in entries]
    after = {id for one in entries for id in one.submission.after}
    inputs = ReferencedInputs.of(session, owner_id, specs, after)
    checks = Checks(session, settings, inputs)
    if problems := _problems(checks, entries):
        raise invalid(problems)
    documents = [spec.model_dump(mode="json") for spec in specs]
    keys = [checks.cache_key(*pair) for pair in zip(specs, documents, strict=True)]
    searched = (key for one, key in zip(entries, keys, strict=True) if one.submission.cache)
    earlier = earlier_results(session, owner_id, searched)
    prepared = []
    for entry, document, key in zip(entries, documents, keys, strict=True):
        submission, _, old = entry
        found = earlier.get(key, ()) if submission.cache else ()
        unfinished = inputs.unfinished(submission.spec, submission.after)
        columns = columns_of(entry, document, checks.memory(submission.spec), unfinished, key)
        answer = answer_of(found, submission)
        prepared.append(PreparedExperiment(columns, unfinished, answer, old))
    return Prepared(prepared, inputs)


class Checks:
    """Checks of the submissions of one request. Everything is looked up once."""

    def __init__(self, session: Session, settings: Settings, inputs: ReferencedInputs):
        self._limits = settings.limits
        self._inputs = inputs
        self._memory = MemoryModel(session)
        self._files = Inputs(settings)
        self._fingerprints: dict[tuple[Path, ...], str | None] = {(): ""}

    def problems(self, entry: Entry) -> list[Problem]:
        """Return the problems of a submission. The spec of a retry was accepted before: only what
        it refers to is checked."""
        submission = entry.submission
        spec, after = submission.spec, submission.after
        found = reference_problems(self._inputs, spec)
        if entry.retry_of is None:
            found = (
                spec.limit_problems(self._limits)
                or found
                or [*self._files.problems(spec)]
                or self._memory.problems(spec, self.memory(spec))
            )
        of_spec = [Problem(f"/spec{one.pointer}", one.detail) for one in found]
        return [*of_spec, *after_problems(self._inputs, after)]

    def cache_key(self, spec: ExperimentSpec, document: dict[str, Any]) -> str | None:
        """Return the key of the result cache, or None if it is unknown. `document` is the spec as
        it is stored."""
        digests, files = self._inputs.digests(spec), self._files.files(spec)
        if digests is None or files is None:
            return None
        read = tuple(files)
        if read not in self._fingerprints:
            self._fingerprints[read] = fingerprint(files)
        found = self._fingerprints[read]
        return None if found is None else key_of(document, [*digests, found])

    def memory(self, spec: ExperimentSpec) -> Memory:
        """Return the memory that a run of the spec needs."""
        return self._memory.expected(spec)


def _problems(checks: Checks, entries: Sequence[Entry]) -> list[Problem]:
    """Return the problems at their places in the request, each place for the first submission that
    has a problem there. Gives up after a hundred wrong submissions."""
    found: list[Problem] = []
    pointers: set[str] = set()
    wrong = 0
    for entry in entries:
        problems = [entry.in_request(problem) for problem in checks.problems(entry)]
        found += [problem for problem in problems if problem.pointer not in pointers]
        pointers.update(problem.pointer for problem in problems)
        wrong += bool(problems)
        if wrong >= MAX_PROBLEMS:
            break
    return found


def columns_of(
    entry: Entry,
    document: dict[str, Any],
    memory: Memory | None,
    unfinished: Sequence[str] = (),
    cache_key: str | None = None,
) -> dict[str, Any]:
    """Return the columns of a new experiment. `document` is its spec as it is stored."""
    submission, _, old = entry
    texts = of_texts(submission.name, submission.tags, submission.note)
    return {
        "spec": document,
        "spec_bytes": len(json.dumps(document)) + texts,
        "device": document["compute"]["device"],
        "expected_bytes": submission.spec.point_count().total * POINT_BYTES,
        "memory_bytes": memory.expected if memory else None,
        "estimated_bytes": memory.by_spec if memory else None,
        "comes_after": [*dict.fromkeys([*submission.after, *unfinished])] or None,
        "cache_key": cache_key,
        "held": Held.AFTER if unfinished else Held.NOT,
        "retry_of": old.id if old else None,
        "sweep_id": old.sweep_id if old else None,
        **{name: getattr(submission, name) for name in BESIDE},
    }

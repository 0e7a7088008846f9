"""Prepare submissions before the transaction that stores them.

Checking thousands of specs and estimating their memory takes seconds, and a transaction that writes
makes other users' writes wait. So everything that takes long is computed here, without a lock. The
transaction compares what it relies on, see `submit.py`."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError
from sqlalchemy.orm import Session

from mptcore.specs import (
    MAX_PROBLEMS,
    ExperimentSpec,
    Problem,
    SpecError,
    missing_family,
    spec_error,
    stored_spec,
)
from service.accounts import projects
from service.accounts.models import OWN
from service.datasets.sizes import Uploads
from service.experiments.cache import CacheKeys, answer_of, earlier_results
from service.experiments.inputs import Inputs
from service.experiments.models import Experiment, Held
from service.experiments.references import ReferencedInputs, after_problems, reference_problems
from service.experiments.schemas import Submission
from service.experiments.titles import value_at
from service.queue.memory import Memory, MemoryModel
from service.queue.quota import Room, room_of
from service.queue.sizes import POINT_BYTES, of_texts
from service.refusals import invalid
from service.settings import Settings
from service.sweeps.expansion import with_values, without_repeats
from service.vocabulary import Visibility

BESIDE = ("name", "tags", "note", "priority", "visibility")
"""Fields of a submission that become columns as they are."""
MAX_AFTER = 20_000
"""Maximum number of experiments that those of one request wait for, counted for each of them. The
transaction that stores the request locks them all, and inserts a row for each."""


@dataclass(frozen=True, slots=True)
class UnresolvedSubmission:
    """The body of a submission whose spec is not complete yet. It is validated once the sizes of
    its upload are known."""

    body: dict[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of a sweep's point, which go into the spec, by their paths."""


class Entry(NamedTuple):
    """A submission of a request."""

    sent: Submission | UnresolvedSubmission
    in_request: Callable[[Problem], Problem] = lambda problem: problem
    """Translates a problem of the submission to its place in the request."""
    retry_of: Experiment | None = None


class Submissions(NamedTuple):
    """The submissions of a request, and the owner of the experiments."""

    owner_id: int
    entries: Sequence[Entry]
    project_id: int = OWN
    """Project of the points of a sweep."""


def retry_entry(old: Experiment, in_request: Callable[[Problem], Problem] = lambda p: p) -> Entry:
    """Return the submission of a new experiment like an old one. Raises ApiError if the spec is no
    longer accepted, or the package of its family is gone."""
    if (reason := missing_family(old.family)) is not None:
        raise invalid([Problem("/spec/model/family", reason)])
    beside = {name: getattr(old, name) for name in BESIDE}
    beside["visibility"] = Visibility(old.visibility)
    try:
        spec = stored_spec(old.spec)
    except ValidationError as error:
        problems = spec_error(error.errors(include_url=False), old.spec, ExperimentSpec)
        raise invalid(problems.within("/spec")) from None
    after = old.comes_after or []
    submission = Submission.model_construct(spec=spec, after=after, cache=False, **beside)
    return Entry(submission, in_request, old)


class PreparedExperiment(NamedTuple):
    """The columns of a new experiment, or the earlier experiment that answers a submission."""

    submission: Submission
    columns: dict[str, Any]
    unfinished: Sequence[str] = ()
    """The experiments that it waits for."""
    cached_from: str | None = None
    retry_of: Experiment | None = None


class Prepared(NamedTuple):
    """Prepared experiments of an owner, and the ids of what they refer to."""

    owner_id: int
    experiments: Sequence[PreparedExperiment]
    room: Room
    """Room of the owner before the transaction. Its sums take long, and requests that are sent
    together may exceed the limit by their own bytes."""
    uploads: Collection[str] = ()
    """Uploads that the specs use."""
    predecessors: Collection[str] = ()
    """Experiments that they come after, or whose weights they use."""


def prepare(session: Session, settings: Settings, submissions: Submissions) -> Prepared:
    """Complete and check submissions, and prepare their experiments. Raises ApiError."""
    owner_id, entries, project_id = submissions
    uploads = Uploads(session, owner_id)
    order = _by_upload(entries)
    completed = _for_each(entries, order, lambda i: _completed(entries[i].sent, uploads))
    specs = [submission.spec for submission in completed]
    after = {id for submission in completed for id in submission.after}
    _check_after(len(after))  # before they are looked up
    inputs = ReferencedInputs.of(session, uploads, specs, after)
    usable = projects.usable(session, owner_id)
    checks = _Checks(settings, inputs, uploads, MemoryModel(session), Inputs(settings), usable)
    memory = _for_each(entries, order, lambda i: checks.check(completed[i], entries[i]))
    documents = [spec.model_dump(mode="json") for spec in specs]
    cache_keys = CacheKeys(inputs, checks.files)
    keys = [cache_keys.key(*pair) for pair in zip(specs, documents, strict=True)]
    searched = (key for one, key in zip(completed, keys, strict=True) if one.cache)
    earlier = earlier_results(session, owner_id, searched)
    experiments = []
    for i, (submission, key) in enumerate(zip(completed, keys, strict=True)):
        old, unfinished = entries[i].retry_of, inputs.unfinished(submission.spec, submission.after)
        in_project = project_id if submission.project is None else usable[submission.project]
        columns = columns_of(submission, documents[i], old, memory[i], unfinished, key, in_project)
        rows = earlier.get(key, ()) if submission.cache else ()
        answer = answer_of(rows, submission, columns["visibility"], in_project)
        experiments.append(PreparedExperiment(submission, columns, unfinished, answer, old))
    new = [one.columns["comes_after"] or () for one in experiments if one.cached_from is None]
    _check_after(sum(map(len, new)))
    room = room_of(session, owner_id, settings.share)
    return Prepared(owner_id, experiments, room, inputs.upload_ids, inputs.statuses.keys())


def _check_after(number: int) -> None:
    """Raises ApiError if the experiments of a request come after too many others."""
    if number > MAX_AFTER:
        detail = (
            f"the experiments of a request come after at most {MAX_AFTER} others in all, not "
            f"{number}: let one experiment come after the others, and the rest after that one"
        )
        raise invalid([Problem("/after", detail)])


def _by_upload(entries: Sequence[Entry]) -> Sequence[int]:
    """Return the order in which submissions with the same upload follow each other. The contents of
    an upload may be a megabyte of JSON, and only a few stay in memory."""
    first: dict[str | None, int] = {}
    groups = []
    for i, (sent, *_) in enumerate(entries):
        if isinstance(sent, Submission):
            name = getattr(sent.spec.data, "dataset", None)
        else:
            base = value_at(sent.body["spec"], "data.dataset")
            name = sent.values.get("data.dataset", value_at(sent.values, "data.dataset") or base)
        groups.append(first.setdefault(name if isinstance(name, str) else None, i))
    return sorted(range(len(entries)), key=groups.__getitem__)


Result = TypeVar("Result")


def _for_each(
    entries: Sequence[Entry], order: Sequence[int], step: Callable[[int], Result]
) -> list[Result]:
    """Return the result of a step for each entry, called with its number, in this order. Raises
    ApiError with the problems that the steps raise as SpecError, located in the request. If several
    submissions have a problem at the same place, only the first is reported, and a problem that
    many values of a swept field have only once. Stops after a hundred wrong submissions."""
    results: dict[int, Result] = {}
    found: list[Problem] = []
    pointers: set[str] = set()
    wrong = unlisted = 0
    for i in order:
        try:
            results[i] = step(i)
        except SpecError as error:
            problems = [entries[i].in_request(problem) for problem in error.problems]
            found += [problem for problem in problems if problem.pointer not in pointers]
            pointers.update(problem.pointer for problem in problems)
            unlisted += error.count - len(problems)
            wrong += 1
        if wrong >= MAX_PROBLEMS:
            break
    if found:
        found = without_repeats(found)
        raise invalid(SpecError(found, len(found) + unlisted))
    return [results[i] for i in range(len(entries))]


def _completed(sent: Submission | UnresolvedSubmission, uploads: Uploads) -> Submission:
    """Return a submission whose spec has the values of its point and the sizes of its upload.
    Raises SpecError."""
    if isinstance(sent, Submission):
        return sent
    try:
        spec = uploads.completed(with_values(sent.body["spec"], sent.values))
    except SpecError as error:
        raise error.within("/spec") from None
    body = {**sent.body, "spec": spec}
    try:
        return Submission.model_validate(body)
    except ValidationError as error:
        raise spec_error(error.errors(include_url=False), body, Submission) from None


@dataclass(frozen=True)
class _Checks:
    """Checks of the submissions of one request. Everything is looked up once."""

    settings: Settings
    inputs: ReferencedInputs
    uploads: Uploads
    memory: MemoryModel
    files: Inputs
    usable: Mapping[str, int]
    """Projects into which the owner may submit, by name."""

    def check(self, submission: Submission, entry: Entry) -> Memory:
        """Return the memory of a run. Raises SpecError for the problems of the submission. The spec
        of a retry was accepted before, so only its references are checked."""
        spec, is_new = submission.spec, entry.retry_of is None
        found = [*reference_problems(self.inputs, spec)]
        if is_new and self.settings.embedded == "cpu" and spec.device == "cuda":
            detail = "this service has no GPU: use auto or cpu"
            found = [Problem("/compute/device", detail)]
        elif is_new:
            found = (
                spec.limit_problems(self.settings.limits)
                or found
                or self.uploads.problems(spec)
                or [*self.files.problems(spec)]
            )
        memory = None
        if not found:  # within the limits
            memory = self.memory.expected(spec)
            found = self.memory.problems(spec, memory) if is_new else []
        problems = [Problem(f"/spec{problem.pointer}", problem.detail) for problem in found]
        problems += after_problems(self.inputs, submission.after)
        name = submission.project
        if name is not None and name not in self.usable:
            problems.append(projects.not_usable(name, self.usable))
        if is_new and name is None and submission.visibility == Visibility.PROJECT:
            problems.append(projects.IN_NO_PROJECT)
        if memory is None or problems:
            raise SpecError(problems)
        return memory


def columns_of(
    submission: Submission,
    document: dict[str, Any],
    old: Experiment | None = None,
    memory: Memory | None = None,
    unfinished: Sequence[str] = (),
    cache_key: str | None = None,
    project_id: int = OWN,
) -> dict[str, Any]:
    """Return the columns of a new experiment. `document` is its spec as it is stored."""
    project_id = old.project_id if old else project_id
    comes_after = [*dict.fromkeys([*submission.after, *unfinished])] or None
    texts = of_texts(submission.name, submission.tags, submission.note)
    if comes_after:
        texts += len(json.dumps(comes_after))
    return {
        "spec": document,
        "spec_bytes": len(json.dumps(document)) + texts,
        "device": submission.spec.device,
        "family": submission.spec.model.family,
        "expected_bytes": submission.spec.point_count().total * POINT_BYTES
        + submission.spec.artifact_bytes(),
        "memory_bytes": memory.expected if memory else None,
        "estimated_bytes": memory.by_spec if memory else None,
        "gpu_part_bytes": submission.spec.gpu_part_bytes(),
        "comes_after": comes_after,
        "cache_key": cache_key,
        "held": Held.AFTER if unfinished else Held.NOT,
        "retry_of": old.id if old else None,
        "sweep_id": old.sweep_id if old else None,
        "project_id": project_id,
        **{name: getattr(submission, name) for name in BESIDE},
        "visibility": projects.chosen_visibility(submission.visibility, project_id),
    }

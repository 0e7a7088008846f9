"""Prepare submissions before the transaction that stores them.

Checking thousands of specs and estimating their memory takes seconds, and a transaction that writes
makes other users' writes wait. So everything that takes long is computed here, without a lock."""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError
from sqlalchemy.orm import Session

from mptcore.specs import (
    MAX_PROBLEMS,
    ExperimentSpec,
    Problem,
    SpecError,
    spec_error,
    stored_spec,
)
from service.datasets.sizes import Uploads
from service.db.visibility import Visibility
from service.experiments.cache import CacheKeys, answer_of, earlier_results
from service.experiments.inputs import Inputs
from service.experiments.models import Experiment, Held
from service.experiments.references import ReferencedInputs, after_problems, reference_problems
from service.experiments.schemas import Submission
from service.experiments.titles import value_at
from service.queue import quota
from service.queue.memory import Memory, MemoryModel
from service.queue.sizes import EXPERIMENT_BYTES, POINT_BYTES, of_texts
from service.refusals import invalid
from service.settings import Settings
from service.sweeps.expansion import check_stored, with_values, without_repeats

BESIDE = ("name", "tags", "note", "priority", "visibility")
"""Fields of a submission that become columns as they are."""
MAX_AFTER = 20_000
"""Maximum number of experiments that those of one request wait for, counted for each of them. While
a request is stored, these experiments, which may be another user's, cannot end."""

MARGIN = 0.18
"""Difference between the share of new submissions in a sample and in the request that is not
exceeded: sqrt(log(10^7) / (2 SAMPLE))."""
SAMPLE = 256
"""Number of submissions of a large request that are prepared to see if it exceeds a limit."""


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


def retry_entry(old: Experiment, in_request: Callable[[Problem], Problem] = lambda p: p) -> Entry:
    """Return the submission of a new experiment like an old one. Raises ApiError if the spec is no
    longer accepted."""
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
    """Prepared experiments, and the inputs that they refer to."""

    experiments: Sequence[PreparedExperiment]
    inputs: ReferencedInputs


def prepare(session: Session, settings: Settings, submissions: Submissions) -> Prepared:
    """Complete and check submissions, and prepare their experiments. Raises ApiError."""
    owner_id, entries = submissions
    uploads = Uploads(session, owner_id)
    order = _by_upload([_upload_of(one.sent) for one in entries])
    steps = [partial(_resolved, one.sent, uploads) for one in entries]
    found = _for_each(entries, steps, order)
    specs = [one.spec for one in found]
    after = {id for one in found for id in one.after}
    _check_after(len(after))  # before they are looked up
    inputs = ReferencedInputs.of(session, owner_id, specs, after)
    checks = _Checks(settings, inputs, MemoryModel(session), uploads)
    pairs = zip(found, entries, strict=True)
    order = _by_upload([getattr(one.data, "dataset", None) for one in specs])
    _for_each(entries, [partial(checks.check, *pair) for pair in pairs], order)
    documents = [spec.model_dump(mode="json") for spec in specs]
    cache_keys = CacheKeys(inputs, checks.files)
    keys = [cache_keys.key(*pair) for pair in zip(specs, documents, strict=True)]
    searched = (key for one, key in zip(found, keys, strict=True) if one.cache)
    earlier = earlier_results(session, owner_id, searched)
    prepared = []
    for entry, submission, document, key in zip(entries, found, documents, keys, strict=True):
        unfinished = inputs.unfinished(submission.spec, submission.after)
        memory = checks.memory.expected(submission.spec)
        columns = columns_of(submission, document, entry.retry_of, memory, unfinished, key)
        answer = answer_of(earlier.get(key, ()), submission) if submission.cache else None
        prepared.append(PreparedExperiment(submission, columns, unfinished, answer, entry.retry_of))
    new = [one.columns["comes_after"] or () for one in prepared if one.cached_from is None]
    _check_after(sum(map(len, new)))
    return Prepared(prepared, inputs)


def check_sample(session: Session, settings: Settings, submissions: Submissions) -> None:
    """Refuse a request of thousands of points that clearly exceeds a limit, before all of them are
    prepared. A random sample tells how many are new, not answered from the cache: if none of it is
    cached, at least 15 of 16, else its share less MARGIN. The probability of an error is below one
    in ten million (Hoeffding's inequality). The exact checks are in the transaction. Raises
    ApiError."""
    owner_id, entries = submissions
    unfinished, most = quota.submitted_of(session, owner_id, settings.share)
    is_over = unfinished + len(entries) * 15 // 16 > most
    if len(entries) < (2 if is_over else 10) * SAMPLE:
        return
    others = random.SystemRandom().sample(range(1, len(entries)), SAMPLE - 1)
    sample = Submissions(owner_id, [entries[i] for i in (0, *sorted(others))])
    found = prepare(session, settings, sample).experiments
    cached = sum(one.cached_from is not None for one in found)
    new = 1 - cached / len(found) - MARGIN if cached else 15 / 16
    least = int(max(0.0, new) * len(entries))
    if unfinished + least > most:
        quota.check_number(session, owner_id, settings.share, len(entries))
    spec_bytes = min(one.columns["spec_bytes"] for one in found)
    check_stored(least * spec_bytes, len(entries))
    expected = min(one.columns["expected_bytes"] for one in found)
    size = EXPERIMENT_BYTES + spec_bytes + expected
    quota.check_bytes(session, owner_id, settings.share, least * size)


def _check_after(number: int) -> None:
    """Raises ApiError if the experiments of a request come after too many others."""
    if number > MAX_AFTER:
        detail = (
            f"the experiments of a request come after at most {MAX_AFTER} others in all, not "
            f"{number}: let one experiment come after the others, and the rest after that one"
        )
        raise invalid([Problem("/after", detail)])


Result = TypeVar("Result")


def _for_each(
    entries: Sequence[Entry], steps: Sequence[Callable[[], Result]], order: Iterable[int]
) -> list[Result]:
    """Return the result of each entry's step; they are run in this order. Raises ApiError with the
    problems that the steps raise as SpecError, located in the request. If several submissions have
    a problem at the same place, only the first is reported, and a problem that many values of a
    swept field have only once. Stops after a hundred wrong submissions."""
    results: dict[int, Result] = {}
    found: list[Problem] = []
    pointers: set[str] = set()
    wrong = unlisted = 0
    for i in order:
        try:
            results[i] = steps[i]()
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


def _by_upload(uploads: Sequence[Any]) -> list[int]:
    """Return the order in which submissions with the same upload follow each other. The contents of
    an upload may be a megabyte of JSON, and only a few stay in memory."""
    first: dict[str | None, int] = {}
    names = [one if isinstance(one, str) else None for one in uploads]
    return sorted(range(len(names)), key=lambda i: first.setdefault(names[i], i))


def _upload_of(sent: Submission | UnresolvedSubmission) -> Any:
    """Return the upload that a submission names, if any."""
    if isinstance(sent, Submission):
        return getattr(sent.spec.data, "dataset", None)
    base = value_at(sent.body["spec"], "data.dataset")
    return sent.values.get("data.dataset", value_at(sent.values, "data.dataset") or base)


def _resolved(sent: Submission | UnresolvedSubmission, uploads: Uploads) -> Submission:
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


class _Checks:
    """Checks of the submissions of one request. Everything is looked up once."""

    def __init__(
        self,
        settings: Settings,
        inputs: ReferencedInputs,
        memory: MemoryModel,
        uploads: Uploads,
    ):
        self.files = Inputs(settings)
        self._uploads = uploads
        self.memory = memory
        self._limits, self._inputs = settings.limits, inputs
        self._without_gpus = settings.without_gpus

    def check(self, submission: Submission, entry: Entry) -> None:
        """Raise SpecError for the problems of a submission. The spec of a retry was accepted
        before, so only its references are checked."""
        spec = submission.spec
        found = reference_problems(self._inputs, spec)
        if entry.retry_of is None:
            found = (
                [*self._device_problems(spec)]
                or spec.limit_problems(self._limits)
                or found
                or self._uploads.problems(spec)
                or [*self.files.problems(spec)]
                or self.memory.problems(spec, self.memory.expected(spec))
            )
        of_spec = [Problem(f"/spec{one.pointer}", one.detail) for one in found]
        if problems := [*of_spec, *after_problems(self._inputs, submission.after)]:
            raise SpecError(problems)

    def _device_problems(self, spec: ExperimentSpec) -> Iterator[Problem]:
        if self._without_gpus and spec.device == "cuda":
            yield Problem("/compute/device", "this service has no GPU: use auto or cpu")


def columns_of(
    submission: Submission,
    document: dict[str, Any],
    old: Experiment | None = None,
    memory: Memory | None = None,
    unfinished: Sequence[str] = (),
    cache_key: str | None = None,
) -> dict[str, Any]:
    """Return the columns of a new experiment. `document` is its spec as it is stored."""
    comes_after = [*dict.fromkeys([*submission.after, *unfinished])] or None
    texts = of_texts(submission.name, submission.tags, submission.note)
    if comes_after:
        texts += len(json.dumps(comes_after))
    return {
        "spec": document,
        "spec_bytes": len(json.dumps(document)) + texts,
        "device": submission.spec.device,
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
        **{name: getattr(submission, name) for name in BESIDE},
    }

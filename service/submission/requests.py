"""Requests that submit experiments, and the bodies of two. Each returns its submissions, and locks
the sweep that they belong to."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, NoReturn

from pydantic import Field, PlainSerializer, PlainValidator
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from mptcore.specs.stored import in_present_form
from service.accounts import audit, projects
from service.accounts.permissions import find_own
from service.accounts.users import Caller
from service.datasets.sizes import is_incomplete
from service.experiments.models import Experiment
from service.experiments.schemas import Submission
from service.experiments.store import actions, wrong_state
from service.long_lists import first_errors
from service.queue import quota
from service.refusals import ApiError, invalid
from service.schemas import MAX_BODY_BYTES, RequestModel, ResponseModel
from service.settings import Settings
from service.submission.preparation import (
    Entry,
    Submissions,
    UnresolvedSubmission,
    retry_entry,
)
from service.sweeps import store
from service.sweeps.expansion import (
    MAX_FIELDS,
    MAX_POINTS,
    MAX_STORED_BYTES,
    check_stored,
    field_problems,
    in_request,
)
from service.sweeps.models import Sweep
from service.sweeps.schemas import MorePoints, SweepSubmission
from service.vocabulary import Action

MAX_TOGETHER = 1000
MAX_RETRIED = 1000
"""Maximum number of points that a request retries: its transaction updates each of them."""


def _read(body: Any) -> Submission | UnresolvedSubmission:
    unresolved = isinstance(body, dict) and is_incomplete(body.get("spec"))
    return UnresolvedSubmission(body) if unresolved else Submission.model_validate(body)


SubmissionBody = Annotated[
    Submission | UnresolvedSubmission,
    PlainValidator(_read, json_schema_input_type=Submission),
    PlainSerializer(lambda sent: sent),  # else the document describes UnresolvedSubmission too
]


class Batch(RequestModel):
    """Experiments to queue, all or none."""

    experiments: Annotated[
        list[SubmissionBody],
        Field(min_length=1, max_length=MAX_TOGETHER),
        first_errors(SubmissionBody),
    ]
    """Experiments, to be submitted in this order, all or none."""

    def count(self) -> int:
        """Return the number of experiments."""
        return len(self.experiments)


class Made(ResponseModel):
    """An experiment of a batch."""

    id: str
    """Id of the experiment."""
    url: str
    """URL of the experiment."""
    cached_from: str | None
    """The same id, if the experiment existed before. null: it is new."""


class BatchOut(ResponseModel):
    """Experiments of a batch."""

    items: list[Made]
    """Experiments, in the order of the request."""


class SubmissionRequest(ABC):
    """Base class of the requests."""

    @abstractmethod
    def submissions(self, session: Session, settings: Settings, user: Caller) -> Submissions:
        """Return the submissions. Raises ApiError."""

    def sweep(self, session: Session, settings: Settings, user: Caller, count: int) -> Sweep | None:
        """Return the sweep of the new points or of the retried experiments, locked. The audit log
        says what happens to it, and to how many experiments."""
        return None


@dataclass(frozen=True)
class Bodies(SubmissionRequest):
    """Experiments that were sent. `pointer` is the place of each in the request, with `{}` for its
    number."""

    sent: Sequence[Submission | UnresolvedSubmission]
    pointer: str = ""

    def submissions(self, session: Session, settings: Settings, user: Caller) -> Submissions:
        places = (self.pointer.format(number) for number in range(len(self.sent)))
        pairs = zip(self.sent, places, strict=True)
        return Submissions(user.id, [Entry(one, partial(_within, place)) for one, place in pairs])


def _within(pointer: str, problem: Problem) -> Problem:
    return Problem(pointer + problem.pointer, problem.detail)


@dataclass(frozen=True)
class Retry(SubmissionRequest):
    """A new experiment like an old one."""

    experiment_id: str

    def submissions(self, session: Session, settings: Settings, user: Caller) -> Submissions:
        old = find_own(session, user, Experiment, self.experiment_id)
        if Action.RETRY not in actions(old):
            raise wrong_state(old)
        return Submissions(old.owner_id, [retry_entry(old)])


@dataclass(frozen=True)
class NewSweep(SubmissionRequest):
    """A sweep and its first points."""

    sent: SweepSubmission

    def submissions(self, session: Session, settings: Settings, user: Caller) -> Submissions:
        sent = self.sent
        points = _points(settings, sent.spec, sent.after, sent)
        return Submissions(user.id, points, self._project_id(session, user))

    def sweep(self, session: Session, settings: Settings, user: Caller, count: int) -> Sweep:
        new = store.new(user.id, self.sent, self._project_id(session, user))
        sweep = store.add(session, new, settings.share)
        audit.note(session, user, "sweep.submitted", sweep.id, points=count)
        return sweep

    def _project_id(self, session: Session, user: Caller) -> int:
        """Return the project of its points. Raises ApiError."""
        return projects.chosen(session, user.id, self.sent.project)


@dataclass(frozen=True)
class AddedPoints(SubmissionRequest):
    """Points that are added to a sweep."""

    sweep_id: str
    more: MorePoints

    def submissions(self, session: Session, settings: Settings, user: Caller) -> Submissions:
        sweep = find_own(session, user, Sweep, self.sweep_id)
        self._check(store.number_of_points(session, sweep.id))  # and again when they are stored
        projects.chosen(session, sweep.owner_id, sweep.project)
        spec = in_present_form(sweep.spec)
        entries = _points(settings, spec, sweep.comes_after, self.more)
        return Submissions(sweep.owner_id, entries, sweep.project_id)

    def sweep(self, session: Session, settings: Settings, user: Caller, count: int) -> Sweep:
        sweep = find_own(session, user, Sweep, self.sweep_id)
        store.lock(session, sweep)
        self._check(store.number_of_points(session, sweep.id))
        fields = [*dict.fromkeys([*sweep.fields, *self.more.fields()])]
        if len(fields) > max(MAX_FIELDS, len(sweep.fields)):
            raise invalid(field_problems(fields, ""))
        sweep.fields = fields
        audit.note(session, user, "sweep.extended", sweep.id, points=count)
        return sweep

    def _check(self, present: int) -> None:
        """Raises ApiError if a sweep with this number of points would have too many."""
        if present + self.more.count() > MAX_POINTS:
            raise invalid([Problem("", f"a sweep has at most {MAX_POINTS} points")])


@dataclass(frozen=True)
class SweepRetry(SubmissionRequest):
    """New experiments for the points of a sweep that failed or were cancelled: as many as a request
    may store and their owner may have."""

    sweep_id: str

    def submissions(self, session: Session, settings: Settings, user: Caller) -> Submissions:
        sweep = find_own(session, user, Sweep, self.sweep_id)
        unfinished, most = quota.submitted_of(session, sweep.owner_id, settings.share)
        count, size = store.room(session, sweep.id)
        count = min(MAX_RETRIED, most - unfinished, count)
        old = store.retryable(session, sweep, count, min(MAX_STORED_BYTES, size))
        entries = [retry_entry(one, partial(_refuse_retry, one)) for one in old]
        return Submissions(sweep.owner_id, entries)

    def sweep(self, session: Session, settings: Settings, user: Caller, count: int) -> Sweep:
        sweep = find_own(session, user, Sweep, self.sweep_id)
        store.lock(session, sweep)  # of two requests the second finds nothing to retry
        audit.note(session, user, "sweep.retried", sweep.id, experiments=count)
        return sweep


def _refuse_retry(old: Experiment, problem: Problem) -> NoReturn:
    """Refuse to retry a sweep for a problem of one of its experiments. Raises ApiError."""
    detail = f"{old.id} cannot run again: {problem.detail}"
    raise ApiError(HTTPStatus.CONFLICT, "not_retryable", detail)


def _points(
    settings: Settings, spec: dict[str, Any], after: Sequence[str], more: MorePoints
) -> Sequence[Entry]:
    """Return the submissions of a sweep's points. Raises ApiError if the specs would be too large,
    before it makes any."""
    size = len(json.dumps(spec))
    if size > MAX_BODY_BYTES:
        detail = f"at most {MAX_BODY_BYTES} bytes, as of one experiment, not {size}"
        raise invalid([Problem("/spec", detail)])
    check_stored(more.estimated_bytes(spec), more.count())
    body = {"spec": spec, "after": after, "cache": more.cache}
    return [
        Entry(UnresolvedSubmission(body, point.values), partial(in_request, i, point))
        for i, point in enumerate(more.points())
    ]

"""Preparing the experiments of a sweep, before the transaction that stores them.

To check and estimate thousands of specs takes seconds, and other users' writes wait for a
transaction that writes. So a request prepares its experiments while it holds no lock. The
transaction prepares them anew only where what they name has changed meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, Problem, stored_spec
from service.experiments import store as experiments
from service.experiments.acceptance import Acceptance
from service.experiments.many import New
from service.experiments.schemas import Submission
from service.experiments.store import columns_again, columns_of
from service.references import Named
from service.refusals import ApiError, invalid
from service.settings import Settings
from service.sharing import Visibility
from service.sweeps import store
from service.sweeps.expansion import MOST_PROBLEMS, Point, in_request
from service.sweeps.models import Sweep
from service.users import Caller


@dataclass(frozen=True, slots=True)
class Prepared:
    """Experiments to store, or the ids of those that computed the same. It rests on what the specs
    name and on what else the request has read."""

    wanted: list[New | str]
    named: Named
    read: object

    def holds(self, session: Session, user: Caller, sweep: Sweep, read: object) -> bool:
        """Return whether nothing has changed that this rests on."""
        named = Named.by(session, sweep.owner_id, self.named.names)
        hits = [one for one in self.wanted if isinstance(one, str)]
        if (named.state, read) != (self.named.state, self.read):
            return False
        return experiments.readable_ids(session, user, hits) == set(hits)


@dataclass(frozen=True, slots=True)
class PointsToAdd:
    """The points of a request, and their specs."""

    points: Sequence[Point]
    specs: Sequence[ExperimentSpec]
    cache: bool
    """Allows an earlier experiment that computed the same to answer."""

    def prepare(self, session: Session, settings: Settings, sweep: Sweep) -> Prepared:
        """Prepare an experiment for each point. Raises ApiError."""
        after = sweep.comes_after
        known = Acceptance(session, settings, sweep.owner_id, self.specs, after)
        if problems := known.after_problems(after) + self._unacceptable(known):
            raise invalid(problems)
        keys = [known.cache_key(spec) for spec in self.specs]
        hits = known.hits(keys if self.cache else [])
        wanted = [
            hits.id_for(key) or _new(known, sweep, spec, key)
            for spec, key in zip(self.specs, keys, strict=True)
        ]
        return Prepared(wanted, known.named, _beside(sweep))

    def confirm(
        self, session: Session, settings: Settings, user: Caller, sweep: Sweep, before: Prepared
    ) -> list[New | str]:
        """Return what was prepared before, or prepare it again where what it names has changed.
        Raises ApiError."""
        if before.holds(session, user, sweep, _beside(sweep)):
            return before.wanted
        return self.prepare(session, settings, sweep).wanted

    def _unacceptable(self, known: Acceptance) -> list[Problem]:
        """Return each problem at its place in the request, for the first point that it concerns."""
        found: dict[str, Problem] = {}
        wrong = 0
        for i, (point, spec) in enumerate(zip(self.points, self.specs, strict=True)):
            problems = known.problems(spec)
            wrong += bool(problems)
            for problem in problems:
                there = in_request(problem, i, point)
                found.setdefault(there.pointer, there)
            if wrong >= MOST_PROBLEMS:
                break
        return [*found.values()]


def _new(known: Acceptance, sweep: Sweep, spec: ExperimentSpec, cache_key: str | None) -> New:
    unfinished = known.unfinished(spec, sweep.comes_after)
    submission = Submission.model_construct(
        spec=spec,
        tags=sweep.tags,
        priority=sweep.priority,
        visibility=Visibility(sweep.visibility),
        after=sweep.comes_after,
    )
    columns = columns_of(submission, known.memory(spec), unfinished, cache_key)
    return New({**columns, "held": store.held(sweep, unfinished)}, unfinished)


def _beside(sweep: Sweep) -> tuple[object, ...]:
    """Return the fields of a sweep that its experiments inherit."""
    limited = sweep.concurrency is not None
    return sweep.tags, sweep.priority, sweep.visibility, sweep.comes_after, limited


def prepare_retry(session: Session, settings: Settings, sweep: Sweep) -> Prepared:
    """Prepare a new experiment for each point whose own failed or was cancelled. Raises ApiError
    where what one named is gone, or shared no longer."""
    old = store.retryable(session, sweep)
    specs = [stored_spec(one.spec) for one in old]
    after = {id for one in old for id in one.comes_after or ()}
    known = Acceptance(session, settings, sweep.owner_id, specs, after)
    new: list[New | str] = []
    for one, spec in zip(old, specs, strict=True):
        after_it = one.comes_after or []
        if problems := known.gone(spec, after_it):
            detail = f"{one.id} cannot run again: {problems[0].detail}"
            raise ApiError(HTTPStatus.CONFLICT, "not_retryable", detail)
        unfinished = known.unfinished(spec, after_it)
        new.append(New(columns_again(one, unfinished, known.cache_key(spec)), unfinished))
    return Prepared(new, known.named, store.retryable_states(session, sweep))


def confirm_retry(
    session: Session, settings: Settings, user: Caller, sweep: Sweep, before: Prepared
) -> list[New | str]:
    """Return what was prepared before, or prepare it again where what it names has changed.
    Raises ApiError."""
    if before.holds(session, user, sweep, store.retryable_states(session, sweep)):
        return before.wanted
    return prepare_retry(session, settings, sweep).wanted

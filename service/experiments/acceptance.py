"""Check whether specs may be submitted."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, Problem
from service.experiments.cache import BESIDE, Hits, fingerprint, hits, key_of
from service.experiments.inputs import Inputs
from service.experiments.memory import Memory, MemoryModel
from service.experiments.schemas import Submission
from service.references import Named, Names, after_problems, reference_problems
from service.settings import Settings


class Acceptance:
    """Looks up once what is needed to judge the specs of one request and their owner, however many
    they are. What the specs name may end meanwhile."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        owner_id: int,
        specs: Iterable[ExperimentSpec],
        after: Iterable[str] = (),
    ):
        self._limits = settings.limits
        self.named = Named.by(session, owner_id, Names.of(specs, after))
        self._memory = MemoryModel(session)
        self._inputs = Inputs(settings)
        self._states: dict[tuple[Path, ...], str | None] = {(): ""}
        self._session, self._owner_id = session, owner_id

    def problems(self, spec: ExperimentSpec) -> list[Problem]:
        """Return the problems of a spec. Pointers are into the spec."""
        problems = spec.limit_problems(self._limits) or reference_problems(self.named, spec)
        problems = problems or list(self._inputs.problems(spec))
        return problems or self._memory.problems(spec, self.memory(spec))

    def submission_problems(self, spec: ExperimentSpec, after: Sequence[str]) -> list[Problem]:
        """Return the problems of a submission. Pointers are into the submission."""
        of_spec = [Problem(f"/spec{p.pointer}", p.detail) for p in self.problems(spec)]
        return of_spec + self.after_problems(after)

    def gone(self, spec: ExperimentSpec, after: Sequence[str]) -> list[Problem]:
        """Return the problems of the references of a spec that was accepted before."""
        named = reference_problems(self.named, spec)
        of_spec = [Problem(f"/spec{p.pointer}", p.detail) for p in named]
        return of_spec + self.after_problems(after)

    def after_problems(self, after: Sequence[str]) -> list[Problem]:
        """Return the problems of the experiments listed in `after`: /after/i."""
        return list(after_problems(self.named, after))

    def cache_key(self, spec: ExperimentSpec) -> str | None:
        """Return the key of the result cache, or None if it is unknown."""
        digests, files = self.named.digests(spec), self._inputs.files(spec)
        if digests is None or files is None:
            return None
        read = tuple(files)
        if read not in self._states:
            self._states[read] = fingerprint(files)
        state = self._states[read]
        if state is None:
            return None
        return key_of(spec.model_dump(mode="json"), [*digests, state])

    def hits(self, keys: Iterable[str | None]) -> Hits:
        """Return earlier experiments with these keys that the owner may read."""
        return hits(self._session, self._owner_id, keys)

    def memory(self, spec: ExperimentSpec) -> Memory:
        """Return the memory that a run of the spec needs."""
        return self._memory.expected(spec)

    def unfinished(self, spec: ExperimentSpec, after: Sequence[str]) -> list[str]:
        """Return the experiments that a run of the spec must wait for."""
        return self.named.unfinished(spec, after)


def beside_of(submission: Submission) -> dict[str, Any]:
    """Return the fields of a submission beside its spec that were given."""
    said = submission.model_dump(include=set(BESIDE), exclude_defaults=True)
    return {name: value for name, value in said.items() if value is not None}

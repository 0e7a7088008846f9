"""The experiment spec: the one language of client, service, database and runner."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mptcore.specs.base import Problem, Seed, Spec, reject
from mptcore.specs.data import DataSource
from mptcore.specs.masks import AllSizes, FixedSize, MaskSchedule
from mptcore.specs.models import Model


class ExactLml(Spec):
    """The log marginal likelihood from the model's density."""

    method: Literal["exact"] = "exact"


class Evaluate(Spec):
    """What is measured. `convergence` also gives the cumulative score from the first 1..P masks of
    each size."""

    masks: MaskSchedule = AllSizes()
    lml: ExactLml = ExactLml()
    convergence: bool = False


class Compute(Spec):
    """Where and how precisely it is computed. `threads` fixes the result to the last bit on a
    CPU; `max_runtime_s` is the time limit of one attempt, in seconds."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float64", "float32"] = "float64"
    threads: Annotated[int, Field(ge=1, le=256)] = 2
    max_runtime_s: Annotated[int, Field(ge=1, le=30 * 24 * 3600)] = 3600


class Limits(Spec):
    """The largest experiment that is accepted."""

    elements: int = 200_000_000
    """Numbers in the data, N · D."""
    mask_work: int = 10_000_000_000
    """Masks times dimensions times latent dimensions; P · D² · K where all sizes are scored."""


class ExperimentSpec(Spec):
    """One experiment: a model scored on data with masks, once for each seed."""

    model: Model
    data: DataSource
    evaluate: Evaluate = Evaluate()
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1000, strict=False)] = (0,)
    compute: Compute = Compute()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = self.data.problems() + self.model.problems(self.data)
        problems += self.evaluate.masks.problems(self.data.dim, "/evaluate/masks")
        if self.evaluate.convergence and not isinstance(self.evaluate.masks, AllSizes | FixedSize):
            detail = "convergence is for the schedules all and fixed, whose score has a limit"
            problems.append(Problem("/evaluate/convergence", detail))
        if len(set(self.seeds)) < len(self.seeds):
            problems.append(Problem("/seeds", "a seed may be listed once only"))
        if problems:
            reject(problems)
        return self

    def mask_count(self) -> int:
        """Masks scored in all, over all seeds."""
        return self.evaluate.masks.count(self.data.dim) * len(self.seeds)

    def limit_problems(self, limits: Limits) -> list[Problem]:
        """What is too large."""
        problems = []
        n, dim, latent_dim = self.data.n, self.data.dim, self.model.latent_dim
        if n * dim > limits.elements:
            detail = f"N · D is at most {limits.elements}; {n} · {dim} is more"
            problems.append(Problem("/data", detail))
        work = self.evaluate.masks.count(dim) * dim * latent_dim
        if work > limits.mask_work:
            detail = (
                f"masks · D · K (P · D² · K for all sizes) is at most {limits.mask_work}; "
                f"this is {work}: lower per_size"
            )
            problems.append(Problem("/evaluate/masks/per_size", detail))
        return problems

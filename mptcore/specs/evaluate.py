"""What is measured with masks, on vectors."""

from typing import Annotated

from pydantic import Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.masks import AllSizes, FixedSize, MaskSchedule

PILOT = 8
"""Masks of each size from which a run with a target learns where to spend the others."""


class MaskEvaluation(Spec):
    """What is measured with masks. `convergence` also gives the cumulative score from the first
    1..P masks of each size; `bias` also gives D · S(m0) − LML for each size m0.

    With `target_std_err` masks are spent on the sizes where they reduce the error most, until the
    sum of the scores has that standard error or `max_masks` are scored (for each seed, a pilot of
    PILOT masks of each size included); `per_size` is then not used.
    """

    masks: MaskSchedule = AllSizes()
    convergence: bool = False
    bias: bool = False
    target_std_err: Annotated[float, Field(gt=0, le=1e6)] | None = None
    max_masks: Annotated[int, Field(ge=100, le=1_000_000_000)] = 200_000

    def count(self, dim: int) -> int:
        """The most masks that are scored for one seed."""
        return self.masks.count(dim) if self.target_std_err is None else self.max_masks

    def problems(self, dim: int) -> list[Problem]:
        problems = self.masks.problems(dim, "/evaluate/masks")
        if self.convergence and not isinstance(self.masks, AllSizes | FixedSize):
            detail = "convergence is for the schedules all and fixed, whose score has a limit"
            problems.append(Problem("/evaluate/convergence", detail))
        if self.convergence and self.masks.design == "exhaustive":
            detail = (
                "convergence is for masks that are drawn; exhaustive leaves nothing to converge"
            )
            problems.append(Problem("/evaluate/convergence", detail))
        if self.target_std_err is not None and not problems:
            problems += self._target_problems(dim)
        return problems

    def _target_problems(self, dim: int) -> list[Problem]:
        problems = []
        if self.convergence:
            detail = "convergence needs as many masks of each size: leave target_std_err out"
            problems.append(Problem("/evaluate/convergence", detail))
        if self.masks.design != "independent":
            detail = "target_std_err allocates independent masks: use the design independent"
            problems.append(Problem("/evaluate/masks/design", detail))
        least = (PILOT + 2) * len(self.masks.mask_sizes(dim))
        if self.max_masks < least:
            detail = f"at least {least} here: a pilot of {PILOT} masks of each size, and two"
            problems.append(Problem("/evaluate/max_masks", detail))
        return problems

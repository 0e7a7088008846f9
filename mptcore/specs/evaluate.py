"""What is measured with masks, on vectors."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.masks import AllSizes, FixedSize, MaskSchedule

PILOT = 8
"""Masks of each size, at least, from which a run with a target learns where to spend the others."""
LEAST_PILOT_IN_ALL = 64
"""Of all sizes, where max_masks leaves no more."""
PILOT_IN_ALL = 256
"""Of all sizes, at least: scores that are very large for one mask in 50 are then met but for one
time in 200."""


def pilot_masks(strata: int, max_masks: int) -> int:
    """Masks of each size (or rate) in the pilot: no more than half of all, where there is one."""
    wanted = min(-(-PILOT_IN_ALL // strata), max_masks // (2 * strata))
    return max(_least_pilot(strata), wanted)


def _least_pilot(strata: int) -> int:
    return max(PILOT, -(-LEAST_PILOT_IN_ALL // strata))


def least_masks(strata: int) -> int:
    """What a run with a target takes at least: the pilot, and two masks of each size (or rate)."""
    return (_least_pilot(strata) + 2) * strata


class MaskEvaluation(Spec):
    """What is measured with masks. `convergence` also gives the cumulative score from the first
    1..P masks of each size; `bias` also gives D · S(m0) − LML for each size m0.

    With `target_std_err` masks are spent on the sizes where they reduce the error most, until what
    is reported has that standard error or `max_masks` are scored (for each seed, a pilot included);
    `per_size` is then not used. What is reported is the sum of the scores (mpt; for listed sizes
    score_sum), for one fixed size D times its score (biased_score); with the `target` difference it
    is the model's less the baseline's, on the same masks (score_difference).
    """

    masks: MaskSchedule = AllSizes()
    convergence: bool = False
    bias: bool = False
    target_std_err: Annotated[float, Field(gt=0, le=1e6)] | None = None
    target: Literal["score", "difference"] = "score"
    max_masks: Annotated[int, Field(ge=100, le=1_000_000_000)] = 200_000

    def count(self, dim: int) -> int:
        """The most masks that are scored for one seed."""
        return self.masks.count(dim) if self.target_std_err is None else self.max_masks

    def problems(self, dim: int, baseline: bool) -> list[Problem]:
        """What is wrong for data of `dim` dimensions, with or without a baseline."""
        problems = self.masks.problems(dim, "/evaluate/masks")
        if self.convergence and not isinstance(self.masks, AllSizes | FixedSize):
            detail = "convergence is for the schedules all and fixed, whose score has a limit"
            problems.append(Problem("/evaluate/convergence", detail))
        if self.convergence and self.masks.design == "exhaustive":
            detail = (
                "convergence is for masks that are drawn; exhaustive leaves nothing to converge"
            )
            problems.append(Problem("/evaluate/convergence", detail))
        problems += target_problems(self.target, "score", self.target_std_err, baseline)
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
        return problems + max_masks_problems(
            self.max_masks, len(self.masks.mask_sizes(dim)), "size"
        )


def max_masks_problems(max_masks: int, strata: int, stratum: str) -> list[Problem]:
    """Whether a target's pilot, and something after it, can be paid."""
    least = least_masks(strata)
    if max_masks >= least:
        return []
    pilot = f"a pilot of {_least_pilot(strata)} masks of each {stratum}, and two"
    return [Problem("/evaluate/max_masks", f"at least {least} here: {pilot}")]


def target_problems(
    target: str, default: str, std_err: float | None, baseline: bool
) -> list[Problem]:
    """Whether there is what the target is for."""
    if target != default and std_err is None:
        detail = f"what target_std_err is for, and there is none: leave it {default}"
        return [Problem("/evaluate/target", detail)]
    if target == "difference" and not baseline:
        detail = f"difference is between the model and a baseline: give one, or use {default}"
        return [Problem("/evaluate/target", detail)]
    return []

"""Evaluation of models of vectors with masks."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.masks import AllSizes, FixedSize, MaskSchedule

PILOT = 8
"""Minimum number of pilot masks of each size. A run with a target uses the pilot to decide where to
spend the other masks."""
MIN_PILOT_IN_ALL = 64
"""Minimum number of pilot masks over all sizes if max_masks allows no more."""
PILOT_IN_ALL = 256
"""Usual minimum number of pilot masks over all sizes. If the score of 1 mask in 50 is very large,
the pilot misses it only once in 200 runs."""


def pilot_masks(strata: int, max_masks: int) -> int:
    """Return the number of pilot masks of each size (or rate): at most half of all masks, if
    possible."""
    wanted = min(-(-PILOT_IN_ALL // strata), max_masks // (2 * strata))
    return max(_least_pilot(strata), wanted)


def _least_pilot(strata: int) -> int:
    return max(PILOT, -(-MIN_PILOT_IN_ALL // strata))


def least_masks(strata: int) -> int:
    """Return the minimum number of masks of a run with a target: the pilot, and two masks of each
    size (or rate)."""
    return (_least_pilot(strata) + 2) * strata


class MaskEvaluation(Spec):
    """Masks to score, and the target error at which a run stops."""

    masks: MaskSchedule = AllSizes()
    """Masks that are scored."""
    convergence: bool = False
    """True also gives the cumulative score from the first 1..P masks of each size."""
    bias: bool = False
    """True also gives D · S(m0) − LML for each mask size m0."""
    target_std_err: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Target standard error. Masks are spent on the sizes where they reduce the error most, until
    `target` has this standard error or `max_masks` are scored; `per_size` is not used. null:
    exactly the masks of `masks` are scored."""
    target: Literal["score", "difference"] = "score"
    """Result that `target_std_err` applies to. `score`: the sum of the scores (metric mpt; for
    listed sizes score_sum), or for one fixed size D times its score (biased_score). `difference`:
    the model's score minus the baseline's, on the same masks (score_difference)."""
    max_masks: Annotated[int, Field(ge=100, le=1_000_000_000)] = 200_000
    """Maximum number of masks for each seed, with `target_std_err`. It includes the pilot and the
    masks of single dimensions."""

    @property
    def has_sum(self) -> bool:
        """True if the scores are summed to one number. Listed sizes are not, without a target."""
        return self.target_std_err is not None or isinstance(self.masks, AllSizes | FixedSize)

    def count(self, dim: int) -> int:
        """Return the maximum number of masks that one seed scores."""
        return self.masks.count(dim) if self.target_std_err is None else self.max_masks

    def problems(self, dim: int, baseline: bool) -> list[Problem]:
        """Return the problems with data of `dim` dimensions, with or without a baseline."""
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
            detail = "convergence needs equally many masks of each size: leave target_std_err out"
            problems.append(Problem("/evaluate/convergence", detail))
        if self.masks.design != "independent":
            detail = "target_std_err allocates independent masks: use the design independent"
            problems.append(Problem("/evaluate/masks/design", detail))
        return problems + max_masks_problems(
            self.max_masks, len(self.masks.mask_sizes(dim)), "size"
        )


def max_masks_problems(max_masks: int, strata: int, stratum: str) -> list[Problem]:
    """Return a problem if `max_masks` does not suffice for the pilot of a target and some more."""
    least = least_masks(strata)
    if max_masks >= least:
        return []
    pilot = f"a pilot of {_least_pilot(strata)} masks of each {stratum}, and two"
    return [Problem("/evaluate/max_masks", f"at least {least} here: {pilot}")]


def target_problems(
    target: str, default: str, std_err: float | None, baseline: bool
) -> list[Problem]:
    """Return a problem if the target has no error to reach or no baseline to compare with."""
    if target != default and std_err is None:
        detail = f"only used with target_std_err: leave it {default}"
        return [Problem("/evaluate/target", detail)]
    if target == "difference" and not baseline:
        detail = f"difference is between the model and a baseline: give one, or use {default}"
        return [Problem("/evaluate/target", detail)]
    return []

"""Masks: their sizes, number and design."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mptcore.specs.base import Problem, Spec, reject

EXHAUSTIVE_LIMIT = 100_000
"""Maximum number of masks of one size that the design `exhaustive` enumerates."""

Design = Literal["independent", "balanced", "nested", "exhaustive"]
Rate = Annotated[float, Field(gt=0, le=1)]
MaskSize = Annotated[int, Field(ge=1, le=10_000_000)]


class Masks(Spec):
    """Base class of the schedules of mask sizes."""

    per_size: Annotated[int, Field(ge=1, le=10_000_000)] = 100
    """Masks of each size: the paper's P. The design exhaustive does not use it."""
    design: Design = "independent"
    """`independent`: every mask is drawn independently, in the published order of draws.
    `balanced`: windows of common permutations, so that each dimension is masked about equally
    often. `nested`: one permutation gives a mask of every size. `exhaustive`: all C(D, m) masks of
    each size m."""

    def count(self, dim: int) -> int:
        """Return the number of masks that are scored for data of `dim` dimensions."""
        sizes = self.mask_sizes(dim)
        if self.design == "exhaustive":
            return sum(math.comb(dim, size) for size in sizes)
        return self.per_size * len(sizes)

    @property
    def windows_per_permutation(self) -> int:
        """Number of masks of one size that share a permutation. The balanced design uses the
        largest divisor of P that is not above its square root, so that at least √P permutations
        remain to give a standard error."""
        if self.design != "balanced":
            return 1
        root = math.isqrt(self.per_size)
        return max(w for w in range(1, root + 1) if self.per_size % w == 0)

    def step_count(self, dim: int) -> int:
        """Return the number of masks of a training step."""
        return self.per_size * len(self.mask_sizes(dim))

    def mask_sizes(self, dim: int) -> Sequence[int]:
        """Return the mask sizes for data of `dim` dimensions."""
        raise NotImplementedError

    def problems(self, dim: int, pointer: str) -> list[Problem]:
        """Return the problems of these masks with data of `dim` dimensions."""
        if self.design != "exhaustive":
            return []
        sizes = self.mask_sizes(dim)
        if all(masks_of_size(dim, m, EXHAUSTIVE_LIMIT) <= EXHAUSTIVE_LIMIT for m in sizes):
            return []
        detail = (
            f"exhaustive is for at most {EXHAUSTIVE_LIMIT} masks of one size; "
            f"{dim} dimensions have more: use independent, balanced or nested"
        )
        return [Problem(f"{pointer}/design", detail)]


def masks_of_size(dim: int, size: int, max_masks: int) -> int:
    """Return C(D, m), or some number above `max_masks` if it is larger: large binomials are not
    computed."""
    total = 1
    for i in range(min(size, dim - size)):
        total = total * (dim - i) // (i + 1)
        if total > max_masks:
            break
    return total


def size_of_rate(rate: float, dim: int) -> int:
    """Return the mask size of a masking rate: 15 % of 512 is 76."""
    return max(1, math.floor(rate * dim + 1e-9))


def _size_problem(size: int, dim: int, pointer: str) -> list[Problem]:
    if size <= dim:
        return []
    return [Problem(pointer, f"a mask size is from 1 to the data's {dim} dimensions, not {size}")]


class AllSizes(Masks):
    """Every size from 1 to D. The sum of their scores is the cumulative MPT score."""

    schedule: Literal["all"] = "all"
    """Schedule of the mask sizes."""

    def mask_sizes(self, dim: int) -> Sequence[int]:
        return range(1, dim + 1)


class ListedSizes(Masks):
    """The listed sizes."""

    schedule: Literal["sizes"]
    """Schedule of the mask sizes."""
    sizes: Annotated[tuple[MaskSize, ...], Field(min_length=1, max_length=100_000)]
    """Mask sizes, from 1 to D."""

    @model_validator(mode="after")
    def _unique(self) -> Self:
        if len(set(self.sizes)) < len(self.sizes):
            reject([Problem("/sizes", "a size may be listed once only")])
        return self

    def mask_sizes(self, dim: int) -> Sequence[int]:
        return self.sizes

    def problems(self, dim: int, pointer: str) -> list[Problem]:
        wrong = [
            problem
            for i, size in enumerate(self.sizes)
            for problem in _size_problem(size, dim, f"{pointer}/sizes/{i}")
        ]
        return wrong or super().problems(dim, pointer)


class FixedSize(Masks):
    """One size, as a number of dimensions or as a rate: exactly one of the two."""

    schedule: Literal["fixed"]
    """Schedule of the mask sizes."""
    size: MaskSize | None = None
    """Number of masked dimensions."""
    rate: Rate | None = None
    """Masked fraction of D."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.size is None) == (self.rate is None):
            reject([Problem("/size", "give exactly one of size and rate")])
        return self

    def mask_sizes(self, dim: int) -> Sequence[int]:
        if self.size is not None:
            return (self.size,)
        assert self.rate is not None
        return (size_of_rate(self.rate, dim),)

    def problems(self, dim: int, pointer: str) -> list[Problem]:
        wrong = _size_problem(self.mask_sizes(dim)[0], dim, f"{pointer}/size")
        return wrong or super().problems(dim, pointer)


MaskSchedule = Annotated[AllSizes | ListedSizes | FixedSize, Field(discriminator="schedule")]


class UniformSize(Masks):
    """For training: one size in each step, uniform over 1..D, so that D · S(m) is unbiased."""

    schedule: Literal["uniform"]
    """Schedule of the mask sizes."""

    def mask_sizes(self, dim: int) -> Sequence[int]:
        return range(1, dim + 1)

    def step_count(self, dim: int) -> int:
        return self.per_size


class Rates(Masks):
    """For training: the sizes of all listed masking rates in each step."""

    schedule: Literal["rates"]
    """Schedule of the mask sizes."""
    rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=10_000)]
    """Masked fractions of D."""

    def mask_sizes(self, dim: int) -> Sequence[int]:
        return tuple(size_of_rate(rate, dim) for rate in self.rates)


class Ramp(Masks):
    """For training: one size in each step. Its rate changes linearly."""

    schedule: Literal["ramp"]
    """Schedule of the mask sizes."""
    start: Rate
    """Masked fraction of D at the start of the training."""
    end: Rate
    """Masked fraction of D at the end of the training."""

    def size_at(self, fraction: float, dim: int) -> int:
        """Return the size after this fraction of the training."""
        return size_of_rate(self.start + fraction * (self.end - self.start), dim)

    def mask_sizes(self, dim: int) -> Sequence[int]:
        return (self.size_at(0, dim),)


TrainSchedule = Annotated[
    AllSizes | FixedSize | UniformSize | Rates | Ramp, Field(discriminator="schedule")
]

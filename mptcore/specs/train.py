"""How a model is trained: the objective, its masks, its steps."""

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.data.arrays import DataSource
from mptcore.specs.masks import AllSizes, TrainSchedule

DEFAULT_MASKS = AllSizes(per_size=1)
ExactObjective = Literal["mpt", "lml"]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def one_or_more(choices: Any) -> BeforeValidator:
    """Validate a list of some choices; a single string stands for a list of one."""
    several = Annotated[list[choices], Field(max_length=len(get_args(choices)))]
    return BeforeValidator(_as_list, json_schema_input_type=choices | several)


class EpochSchedule(Spec):
    """How long a training goes on, and in which steps. `batch_size`: observations in a step, all
    where it is null. The epochs `curve_at` give the whole curve that `evaluate` asks for."""

    epochs: Annotated[int, Field(ge=1, le=10_000_000)]
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.01
    batch_size: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    masks: TrainSchedule = DEFAULT_MASKS
    evaluate_every: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    curve_at: Annotated[
        tuple[Annotated[int, Field(ge=0, le=10_000_000)], ...],
        Field(max_length=1000, strict=False),
    ] = ()

    @property
    def length(self) -> int:
        """The number of epochs."""
        return self.epochs

    @property
    def unit(self) -> Literal["epochs"]:
        """What its length counts."""
        return "epochs"

    def steps_per_epoch(self, n: int) -> int:
        return 1 if self.batch_size is None else math.ceil(n / self.batch_size)

    def masks_per_step(self, dim: int) -> int:
        return self.masks.step_count(dim)

    def masks_of_epoch(self, epoch: int, n: int, dim: int) -> int:
        """Masks that one start scores in an epoch, with n observations. The last epoch scores those
        of one step, which is recorded and not taken."""
        steps = 1 if epoch == self.epochs else self.steps_per_epoch(n)
        return steps * self.masks_per_step(dim)

    def problems(self, data: DataSource) -> list[Problem]:
        problems = self.masks.problems(data.dim, "/train/masks")
        if self.masks.design != "independent":
            detail = "training draws independent masks: use the design independent"
            problems.append(Problem("/train/masks/design", detail))
        if self.batch_size is not None and self.batch_size > data.kept_n:
            detail = f"at most the {data.kept_n} observations that are trained on"
            problems.append(Problem("/train/batch_size", f"{detail}, not {self.batch_size}"))
        if len(set(self.curve_at)) < len(self.curve_at):
            problems.append(Problem("/train/curve_at", "an epoch may be listed once only"))
        for i, epoch in enumerate(self.curve_at):
            if epoch > self.epochs:
                detail = f"an epoch from 0 to {self.epochs}, not {epoch}"
                problems.append(Problem(f"/train/curve_at/{i}", detail))
        return problems


class Train(EpochSchedule):
    """All seeds are trained together, each from its own start, by Adam.

    `objective`: mpt maximises the cumulative score estimated from `masks`; lml the exact log
    marginal likelihood. Every `evaluate_every` epochs loss, mpt and lml are recorded. The mean is
    the data's own, or learned with `learn_mean`.
    """

    objective: Annotated[
        tuple[ExactObjective, ...],
        Field(min_length=1, max_length=1, strict=False),
        one_or_more(ExactObjective),
    ] = ("mpt",)
    learn_mean: bool = False
    learn_noise_precision: bool = False

    def masks_per_step(self, dim: int) -> int:
        return super().masks_per_step(dim) if self.objective == ("mpt",) else 1

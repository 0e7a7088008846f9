"""Training of models of vectors: objective, masks and steps."""

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.masks import AllSizes, TrainSchedule
from mptcore.specs.vectors import DataSource

DEFAULT_MASKS = AllSizes(per_size=1)
ExactObjective = Literal["mpt", "lml"]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def one_or_more(choices: Any) -> BeforeValidator:
    """Validate a list of some choices; a single string is read as a list with one item."""
    several = Annotated[list[choices], Field(max_length=len(get_args(choices)))]
    return BeforeValidator(_as_list, json_schema_input_type=choices | several)


class EpochSchedule(Spec):
    """Length and steps of a training."""

    epochs: Annotated[int, Field(ge=1, le=10_000_000)]
    """Number of passes over the data."""
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.01
    """Learning rate of Adam."""
    batch_size: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Observations in a step. null: all."""
    masks: TrainSchedule = DEFAULT_MASKS
    """Masks of a training step."""
    evaluate_every: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    """Epochs between two records of loss, mpt, elbo (with an encoder) and lml."""
    curve_at: Annotated[
        tuple[Annotated[int, Field(ge=0, le=10_000_000)], ...],
        Field(max_length=1000),
    ] = ()
    """Epochs at which the curve that `evaluate` asks for is recorded."""

    @property
    def length(self) -> int:
        """Number of epochs."""
        return self.epochs

    @property
    def unit(self) -> Literal["epochs"]:
        """Unit of the length."""
        return "epochs"

    def steps_per_epoch(self, n: int) -> int:
        return 1 if self.batch_size is None else math.ceil(n / self.batch_size)

    def masks_per_step(self, dim: int) -> int:
        return self.masks.step_count(dim)

    def masks_of_epoch(self, epoch: int, n: int, dim: int) -> int:
        """Return the number of masks that one start scores in an epoch, with n observations. The
        last epoch scores one step, which is recorded but does not change the weights."""
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
    """Training by Adam. All seeds are trained together, each from its own start."""

    objective: Annotated[
        tuple[ExactObjective, ...],
        Field(min_length=1, max_length=1),
        one_or_more(ExactObjective),
    ] = ("mpt",)
    """Objective to maximize. `mpt`: the cumulative score estimated from `masks`; `lml`: the exact
    log marginal likelihood."""
    learn_mean: bool = False
    """True trains the mean. False uses the data's mean."""
    learn_noise_precision: bool = False
    """True trains the noise precision too."""

    def masks_per_step(self, dim: int) -> int:
        return super().masks_per_step(dim) if self.objective == ("mpt",) else 1

"""Base classes of the experiments of all families: their parts, how often a run scores masks, and
how many points it writes. No torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from mptcore.specs.base import Problem, Seeds, Spec, reject, seed_problems
from mptcore.specs.compute import Compute, DeviceName, Limits, Machine
from mptcore.specs.evaluate import MaskEvaluation
from mptcore.specs.vectors import DataSource

SERIES_OF_A_STEP = 6
"""Maximum number of series that a training records: loss, mpt, elbo, lml, and two of held-out
data."""


MAX_CURVES = 4_000
"""Maximum number of curves of a run: one for each model, seed and epoch of `curve_at`. Each has
three to twelve metrics, and an answer has all metrics of a run: with 10,000 curves it took 4 s and
200 MB."""


@dataclass(frozen=True)
class PointCount:
    """Maximum numbers of points of a run, by the part of the spec that causes them."""

    curve: int
    """Points of the scores by mask size or rate, and of the bias."""
    convergence: int
    training: int

    @property
    def total(self) -> int:
        return self.curve + self.convergence + self.training

    def problems(self, limits: Limits) -> list[Problem]:
        """Return a problem if the run would write more points than the limit."""
        if self.total <= limits.points:
            return []
        by_size = {
            self.curve: ("/evaluate/masks", "use fewer mask sizes, seeds or train.curve_at"),
            self.convergence: ("/evaluate/convergence", "lower per_size, or leave it out"),
            self.training: ("/train/evaluate_every", "raise it"),
        }
        pointer, advice = by_size[max(by_size)]
        detail = (
            f"an experiment writes at most {limits.points} points (MPT_LIMITS__POINTS); this one "
            f"would write up to {self.total}: {advice}"
        )
        return [Problem(pointer, detail)]


if TYPE_CHECKING:
    Absent = Any
else:
    Absent = None  # a family that has the part declares its type


class Experiment(Spec):
    """Base class of experiments. The model is trained if `train` is given, and scored, once for
    each seed. A family declares the types of the parts."""

    model: Any
    """Model that is scored."""
    baseline: Absent = None
    """null: this family has no second model."""
    data: Any
    """Observations."""
    train: Absent = None
    """null: this family is not trained."""
    evaluate: Any
    """Measurements of the model."""
    seeds: Seeds = (0,)
    """Seeds of the runs, one run for each."""
    compute: Machine = Compute()
    """Device, precision, time limit and memory."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := [*self.problems(), *seed_problems(self.seeds)]:
            reject(problems)
        return self

    def problems(self) -> list[Problem]:
        """Return the contradictions between fields."""
        raise NotImplementedError

    @property
    def device(self) -> DeviceName:
        """Device of the run: `compute.device`. For `auto`, a family returns `cpu` if most of its
        runs take a CPU less time than a GPU needs to start."""
        return self.compute.device

    @property
    def models(self) -> int:
        """Number of models that are scored."""
        return 2 if self.baseline else 1

    @property
    def starts(self) -> int:
        """Number of models that are trained or scored: one for each seed."""
        return len(self.seeds)

    @property
    def curves(self) -> int:
        """Number of curves that are recorded."""
        return self.starts * (1 + len(self.train.curve_at if self.train else ()))

    @property
    def evaluations(self) -> int:
        """Number of times that masks are scored as `evaluate` says."""
        return self.curves

    def mask_count(self) -> int | None:
        """Return the number of masks that all seeds score, training included. None: it is known
        once the data has been read."""
        return None

    def artifact_bytes(self) -> int:
        """Estimate the bytes of the files that a run writes with its results, without weights."""
        return 0

    def curve_points(self) -> tuple[int, int]:
        """Return the maximum numbers of points of one evaluation: of the curve, of the
        convergence."""
        raise NotImplementedError

    def point_count(self) -> PointCount:
        """Return the maximum number of points that a run writes. A training records the first step,
        the last, and each `evaluate_every`."""
        curve, convergence = (self.curves * each for each in self.curve_points())
        recorded = self.train.length // self.train.evaluate_every + 2 if self.train else 0
        return PointCount(curve, convergence, self.starts * recorded * SERIES_OF_A_STEP)

    @property
    def memory_field(self) -> str:
        """Part of the spec that determines most of the memory."""
        return "/data"

    def memory_estimate(self) -> int:
        """Estimate the memory of a run, in bytes."""
        raise NotImplementedError

    def gpu_part_bytes(self) -> int:
        """Return the memory that a run takes on a large GPU in addition to its estimate, if it is
        free."""
        return 0

    def memory_problems(self, limits: Limits, advice: str) -> list[Problem]:
        """Return a problem if a run takes more memory than the limit."""
        needed = self.memory_estimate()
        if needed <= limits.memory_bytes:
            return []
        most = f"a run takes at most {limits.memory_bytes >> 20} MiB"
        detail = f"{most}; this takes about {needed >> 20}: {advice}"
        return [Problem(self.memory_field, detail)]

    def limit_problems(self, limits: Limits) -> list[Problem]:
        """Return the limits that the experiment exceeds."""
        problems = self.point_count().problems(limits)
        curves = self.models * self.curves
        if curves > MAX_CURVES:
            detail = (
                f"an experiment records at most {MAX_CURVES} curves, each with its metrics, and "
                f"this one {curves}: list fewer epochs, or use fewer seeds"
            )
            problems.append(Problem("/train/curve_at", detail))
        return problems


class OutsideExperiment(Experiment):
    """Base class of the experiments of a family from outside: one that an installed package
    registers (docs/adding-a-family.md)."""

    run: ClassVar[str]
    """Import path of the class of its runs, as "package.module:Class". It is imported where an
    experiment runs, because it needs torch."""
    compute: Compute = Compute()
    """Device, precision, time limit and memory."""


class VectorExperiment(Experiment):
    """Base class of experiments on data of N observations × D dimensions."""

    data: DataSource
    """Observations."""
    evaluate: MaskEvaluation = MaskEvaluation()
    """Measurements of the model."""
    compute: Compute = Compute()
    """Device, precision, time limit and memory."""

    def problems(self) -> list[Problem]:
        problems = self.data.problems() + self.model_problems()
        if self.train:
            problems += self.train.problems(self.data)
        return problems + self.evaluate.problems(self.data.dim, self.baseline is not None)

    @property
    def missing_refusal(self) -> str | None:
        """Reason why missing values are refused. None: they are used."""
        advice = "fill these in, leave their rows or columns out, or use ppca or factor_analysis"
        return f"this family needs every value, so {advice}"

    @property
    def sets(self) -> int:
        """Number of sets of observations that are scored: the data, and the held-out observations
        if scores are summed."""
        return 1 if self.data.heldout is None or not self.evaluate.has_sum else 2

    @property
    def evaluations(self) -> int:
        return self.sets * self.curves

    def model_problems(self) -> list[Problem]:
        """Return the problems of the models with the data."""
        return []

    def mask_count(self) -> int:
        return self.evaluations * self.evaluate.count(self.data.dim) + self.train_masks()

    def train_masks(self) -> int:
        """Return the number of masks that all trainings score. The last epoch is recorded and not
        trained."""
        if self.train is None:
            return 0
        steps = self.train.epochs * self.train.steps_per_epoch(self.data.kept_n) + 1
        return int(self.starts * steps * self.train.masks_per_step(self.data.dim))

    def curve_points(self) -> tuple[int, int]:
        evaluate = self.evaluate
        each_size = self.models * (2 if evaluate.bias else 1) + (self.models > 1)
        converging = self.models * evaluate.masks.per_size if evaluate.convergence else 0
        return len(evaluate.masks.mask_sizes(self.data.dim)) * each_size, converging

    def element_problems(self, limits: Limits) -> list[Problem]:
        """Return a problem if the data has more values than the limit."""
        n, dim = self.data.n, self.data.dim
        if n * dim <= limits.elements:
            return []
        return [Problem("/data", f"N · D is at most {limits.elements}; {n} · {dim} is more")]

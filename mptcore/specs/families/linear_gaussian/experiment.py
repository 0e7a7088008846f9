"""Experiments on vectors: data of N observations × D dimensions."""

from typing import Literal, Self

from pydantic import model_validator

from mptcore.specs.base import Problem, Seeds, Spec, reject, seed_problems
from mptcore.specs.compute import Compute, Limits
from mptcore.specs.data.arrays import DataSource
from mptcore.specs.evaluate import MaskEvaluation
from mptcore.specs.families.linear_gaussian.models import LinearGaussianSpec
from mptcore.specs.train import Train


class ExactLml(Spec):
    """The log marginal likelihood from the model's density."""

    method: Literal["exact"] = "exact"


class Evaluate(MaskEvaluation):
    """What is measured."""

    lml: ExactLml = ExactLml()


class VectorExperiment(Spec):
    """One experiment on data of N observations × D dimensions: a model, trained first where `train`
    says how, is scored with masks, once for each seed. `baseline` is a second model scored on the
    same data and masks; series and metrics then carry the label `model`."""

    model: LinearGaussianSpec
    baseline: LinearGaussianSpec | None = None
    data: DataSource
    train: Train | None = None
    evaluate: Evaluate = Evaluate()
    seeds: Seeds = (0,)
    compute: Compute = Compute()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = self.data.problems() + self.model.problems(self.data, "/model")
        if self.baseline:
            problems += self.baseline.problems(self.data, "/baseline")
        if self.train:
            problems += self.train.problems(self.data)
        problems += self.evaluate.problems(self.data.dim, self.baseline is not None)
        problems += seed_problems(self.seeds)
        if problems:
            reject(problems)
        return self

    def mask_count(self) -> int:
        """Masks scored in all, over all seeds, those of training among them."""
        scored = self.evaluation_count() * self.evaluate.count(self.data.dim)
        return scored + len(self.seeds) * self._train_masks()

    def evaluation_count(self) -> int:
        """How often masks are scored as `evaluate` says."""
        return len(self.seeds) * (1 + len(self.train.curve_at if self.train else ()))

    def _train_masks(self) -> int:
        """Masks that one seed's training scores; the last epoch is recorded, and not trained."""
        if self.train is None:
            return 0
        steps = self.train.epochs * self.train.steps_per_epoch(self.data.kept_n) + 1
        return steps * self.train.masks_per_step(self.data.dim)

    def _latent_dims(self) -> int:
        """K, that of the baseline added."""
        return self.model.latent_dim + (self.baseline.latent_dim if self.baseline else 0)

    @property
    def memory_field(self) -> str:
        """The part of the spec that most of the memory depends on."""
        return "/data"

    def memory_estimate(self) -> int:
        """About how many bytes a run takes, but for the masks scored together."""
        n, dim, latent_dim = self.data.n, self.data.dim, self._latent_dims()
        starts = len(self.seeds) * self._train_bytes_per_start() if self.train else 0
        return 8 * (4 * n * dim + 2 * dim**2 + 2 * dim * latent_dim**2) + starts

    def _train_bytes_per_start(self) -> int:
        assert self.train is not None
        dim, latent_dim = self.data.dim, self.model.latent_dim
        per_mask = 8 * (20 * dim + 6 * dim * latent_dim)
        return 8 * 6 * dim * latent_dim**2 + per_mask * self.train.masks_per_step(dim)

    def limit_problems(self, limits: Limits) -> list[Problem]:
        """What is too large."""
        problems = []
        n, dim, latent_dim = self.data.n, self.data.dim, self._latent_dims()
        if n * dim > limits.elements:
            detail = f"N · D is at most {limits.elements}; {n} · {dim} is more"
            problems.append(Problem("/data", detail))
        work = self.evaluate.count(dim) * dim * latent_dim
        if work > limits.mask_work:
            field = "per_size" if self.evaluate.target_std_err is None else "max_masks"
            detail = (
                f"masks · D · K (P · D² · K for all sizes) is at most {limits.mask_work}; "
                f"this is {work}: lower {field}"
            )
            pointer = "/evaluate/masks/per_size" if field == "per_size" else "/evaluate/max_masks"
            problems.append(Problem(pointer, detail))
        training = len(self.seeds) * self._train_masks() * dim * latent_dim
        if training > limits.train_work:
            detail = (
                f"steps · masks · D · K over all seeds is at most {limits.train_work}; "
                f"this is {training}: lower epochs or train.masks.per_size"
            )
            problems.append(Problem("/train/epochs", detail))
        return problems + self._memory_problems(limits)

    def _memory_problems(self, limits: Limits) -> list[Problem]:
        needed = self.memory_estimate()
        if needed > limits.memory_bytes:
            detail = (
                f"a run takes at most {limits.memory_bytes >> 20} MiB; this takes about "
                f"{needed >> 20}: N · D, D², D · K² and the masks of a step count"
            )
            return [Problem(self.memory_field, detail)]
        if (self.compute.memory_bytes or 0) > limits.memory_bytes:
            detail = f"at most {limits.memory_bytes >> 20}, as for the whole run"
            return [Problem("/compute/memory_mib", detail)]
        one_mask = 8 * self.data.dim * (6 + 4 * self.model.latent_dim)
        if self.compute.memory_bytes is not None and self.compute.memory_bytes < one_mask:
            detail = f"one mask takes up to {(one_mask >> 20) + 1} MiB here: give that or more"
            return [Problem("/compute/memory_mib", detail)]
        return []

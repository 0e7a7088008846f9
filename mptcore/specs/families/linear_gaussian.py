"""Experiments with PPCA and factor analysis: their models, counts of masks and points, memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import ExperimentId, Problem, Spec
from mptcore.specs.compute import GPU_BATCH_BYTES, DeviceName, Limits
from mptcore.specs.evaluate import MaskEvaluation
from mptcore.specs.experiment import PointCount, VectorExperiment
from mptcore.specs.train import Train
from mptcore.specs.vectors import (
    DataSource,
    DigitsData,
    PpcaData,
    Precision,
    UploadData,
    columns_are,
)

SCORED_A_SECOND, TRAINED_A_SECOND = 1.2e10, 3e9
"""Approximate number of multiplications a second on two cores, in scoring and in training: see
docs/speed.md."""
MAX_RANK = 128
"""Maximum rank of a moment that is treated as a moment of low rank."""
MIN_WORK = 20_000
"""Minimum number of multiplications that a mask counts for. Drawing a mask takes time too."""
MAX_ITERATIONS = 5_000
"""Maximum number of iterations of a fit."""
MAX_FIT_POINTS = 100
"""Maximum number of points that a fit records."""
BYTES_PER_ROW = 100
"""Approximate bytes of a line in the table of rows, with an id and the columns of a row that is
unusual."""
BYTES_PER_SCORE = 32
"""Bytes that the score of a mask takes. Scores are kept to the end, and copied when the run is
saved."""


def constant_columns(columns: Sequence[str], are_names: bool) -> str:
    """Return why factor analysis cannot estimate its noise with these constant columns."""
    which = columns_are(columns, are_names, "constant")
    detail = "so factor analysis has no maximum: leave out constant columns, or use family ppca"
    return f"{which}, {detail}"


LatentDimensions = Annotated[int, Field(ge=1, le=100_000)]


class LinearGaussian(Spec):
    """x = W z + mu + e, z ~ N(0, I), with noise e independent per dimension."""

    family: str
    """Family of the model."""
    latent_dim: LatentDimensions
    """Number of latent dimensions K, less than D."""
    noise_precision: Precision | None = None
    """1 / variance of the noise. null: estimated from the data, or read from `experiment`."""
    init: str
    """Source of the initial parameters."""
    experiment: ExperimentId | None = None
    """Id of the finished experiment that trained or fitted the model, with `init: experiment`. The
    model is that of the same seed, or of its first seed if it did not have this seed."""

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        """Return the problems of this model with the data."""
        problems = []
        if self.latent_dim >= data.dim:
            detail = f"at most {data.dim - 1}, fewer than the data's {data.dim} dimensions"
            problems.append(Problem(f"{pointer}/latent_dim", f"{detail}, not {self.latent_dim}"))
        if self.init == "random" and self.noise_precision is None:
            detail = "init random needs a number above 0: maximum_likelihood would estimate it"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        if self.init == "experiment" and self.noise_precision is not None:
            detail = "init experiment brings its own: leave it null"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        if (self.init == "experiment") != (self.experiment is not None):
            detail = "the id of the experiment whose weights are used; only with init experiment"
            problems.append(Problem(f"{pointer}/experiment", detail))
        return problems


class PpcaModel(LinearGaussian):
    """Probabilistic PCA: x = W z + mu + e, e ~ N(0, I / noise_precision)."""

    family: Literal["ppca"]
    """Family of the model."""
    init: Literal["generator", "random", "maximum_likelihood", "experiment"] = "random"
    """Source of the parameters. `random` draws W from N(0, 1), with the data's mean. `generator`
    uses the parameters that generated the data. `maximum_likelihood` is the closed form of Tipping
    & Bishop (1999), which estimates `noise_precision` if it is null. `experiment` uses the weights
    of an earlier experiment."""

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        problems = super().problems(data, pointer)
        if self.init == "generator":
            problems += self._unlike_generator(data, pointer)
        return problems

    def _unlike_generator(self, data: DataSource, pointer: str) -> list[Problem]:
        if not isinstance(data, PpcaData):
            detail = f"generator is for data.source ppca; {data.source} has no generator"
            return [Problem(f"{pointer}/init", f"{detail}: use random or maximum_likelihood")]
        return [
            Problem(
                f"{pointer}/{name}",
                f"init generator takes the data's own {name}: {generated}",
            )
            for name in ("latent_dim", "noise_precision")
            if getattr(self, name) != (generated := getattr(data, name))
        ]


class FactorAnalysisModel(LinearGaussian):
    """Factor analysis: PPCA with a noise variance for each dimension, e ~ N(0, diag(psi))."""

    family: Literal["factor_analysis"]
    """Family of the model."""
    init: Literal["random", "maximum_likelihood", "experiment"] = "random"
    """Source of the parameters. `random` draws W from N(0, 1), with the data's mean and
    `noise_precision` in every dimension. `maximum_likelihood` runs EM and L-BFGS-B until the
    likelihood no longer changes, and estimates the noise variances. `experiment` uses the weights
    of an earlier experiment."""

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        problems = super().problems(data, pointer)
        if self.init == "maximum_likelihood" and self.noise_precision is not None:
            detail = "init maximum_likelihood estimates one for each dimension: leave it null"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        return problems


LinearGaussianSpec = Annotated[PpcaModel | FactorAnalysisModel, Field(discriminator="family")]


class LinearGaussianExperiment(VectorExperiment):
    """Experiments with PPCA or factor analysis on data of N observations × D dimensions. The model
    is trained if `train` is given, and scored with masks, once for each seed."""

    model: LinearGaussianSpec
    """Model that is scored."""
    baseline: LinearGaussianSpec | None = None
    """Second model for the same data and masks. Results then have the label `model`."""
    train: Train | None = None
    """Training before the scores. null: no training."""
    evaluate: MaskEvaluation = MaskEvaluation()
    """Measurements of the model."""

    @property
    def device(self) -> DeviceName:
        """Device of the run. `auto` is the CPU."""
        return "cpu" if self.compute.device == "auto" else self.compute.device

    def model_problems(self) -> list[Problem]:
        problems = self.model.problems(self.data, "/model")
        if isinstance(self.data, DigitsData) and self.estimates_each_noise:
            problems.append(Problem("/data/source", constant_columns(self.data.constant, False)))
        return problems + (self.baseline.problems(self.data, "/baseline") if self.baseline else [])

    @property
    def missing_refusal(self) -> str | None:
        if self.train is None:
            return None
        advice = "leave train out; init maximum_likelihood fits the observed values"
        return f"train needs every value, so {advice}"

    @property
    def estimates_each_noise(self) -> bool:
        """True if the noise variance of each dimension is estimated. On a constant column that
        makes the likelihood unbounded."""
        trained = [self.model] if self.train and self.train.learn_noise_precision else []
        return bool(self._fits or any(isinstance(m, FactorAnalysisModel) for m in trained))

    @property
    def _fits(self) -> int:
        """Number of models that EM fits to the data."""
        models = (self.model, self.baseline)
        fitted = (m for m in models if m and m.init == "maximum_likelihood")
        return sum(isinstance(model, FactorAnalysisModel) for model in fitted)

    @property
    def scores_rows(self) -> bool:
        """True if each row of the data is scored: by a model that was fitted or trained before."""
        return self.train is None and self.model.init == "experiment"

    @property
    def keeps_rows(self) -> bool:
        """True if the scores of rows are kept as a table: those of an upload, which all seeds
        share."""
        return self.scores_rows and isinstance(self.data, UploadData)

    def artifact_bytes(self) -> int:
        """Estimate the bytes of the table of rows."""
        return BYTES_PER_ROW * self.data.n * len(self.seeds) if self.keeps_rows else 0

    def point_count(self) -> PointCount:
        """Return the maximum number of points. Every fit to an upload may be iterative, because
        values may be missing."""
        count, fits = super().point_count(), self._fits
        if isinstance(self.data, UploadData):
            models = (self.model, self.baseline)
            fits = sum(m is not None and m.init == "maximum_likelihood" for m in models)
        if self.data.seed == "run":
            fits *= len(self.seeds)
        return replace(count, training=count.training + fits * MAX_FIT_POINTS)

    def _latent_dims(self) -> int:
        """Return K, plus that of the baseline."""
        return self.model.latent_dim + (self.baseline.latent_dim if self.baseline else 0)

    @property
    def memory_field(self) -> str:
        by_scores = 2 * self._score_bytes() > self.memory_estimate()
        return "/evaluate/masks/per_size" if by_scores else "/data"

    def memory_estimate(self) -> int:
        n, dim, latent_dim = self.data.n, self.data.dim, self._latent_dims()
        starts = len(self.seeds) * self._train_bytes_per_start() if self.train else 0
        tables = dim * latent_dim * (2 * latent_dim + 3 * min(dim, MAX_RANK))
        numbers = 4 * n * dim + 2 * dim**2 + tables
        scores = self._score_bytes() + self._together_bytes()
        return 8 * numbers + starts + self._kept_bytes() + scores + 4 * self.artifact_bytes()

    def _kept_bytes(self) -> int:
        """Return the memory of fitted parameters, which are kept to the end and then saved."""
        is_fitted = self.train is None and self.model.init == "maximum_likelihood"
        if not is_fitted or self.data.seed != "run":
            return 0
        return 3 * 8 * len(self.seeds) * self.data.dim * (self.model.latent_dim + 2)

    def _score_bytes(self) -> int:
        """Return the memory of all scores. With a target it is unknown, since few masks may reach
        it."""
        if self.evaluate.target_std_err is not None:
            return 0
        scores = self.models * self.sets * len(self.seeds) * self.evaluate.count(self.data.dim)
        return BYTES_PER_SCORE * scores

    def _together_bytes(self) -> int:
        if self.device == "cpu":
            return self.compute.memory_bytes or 0
        max_bytes = self.compute.memory_bytes or GPU_BATCH_BYTES
        return min(max_bytes, self.evaluate.count(self.data.dim) * self._bytes_per_mask())

    def _bytes_per_mask(self) -> int:
        """Return the maximum memory of a mask."""
        baseline = self.baseline.latent_dim if self.baseline else 0
        return 8 * self.data.dim * (6 + 4 * max(self.model.latent_dim, baseline))

    def _train_bytes_per_start(self) -> int:
        assert self.train is not None
        dim, latent_dim = self.data.dim, self.model.latent_dim
        per_mask = 20 * dim + 6 * dim * latent_dim
        tables = dim * latent_dim * (6 * latent_dim + 3 * min(dim, MAX_RANK))
        return 8 * (tables + per_mask * self.train.masks_per_step(dim))

    def limit_problems(self, limits: Limits) -> list[Problem]:
        problems = self.element_problems(limits)
        target = self.evaluate.target_std_err is not None
        pointer = "/evaluate/max_masks" if target else "/evaluate/masks/per_size"
        lower = "max_masks" if target else "per_size"
        masks, max_work = self.evaluate.count(self.data.dim), limits.mask_work
        problems += self._work_problems(masks, max_work, SCORED_A_SECOND, pointer, lower)
        masks, max_work = self.train_masks(), limits.train_work
        lower = "epochs or train.masks.per_size"
        problems += self._work_problems(masks, max_work, TRAINED_A_SECOND, "/train/epochs", lower)
        return problems + self._memory_problems(limits) + super().limit_problems(limits)

    def _mask_work(self) -> int:
        """Return the number of multiplications that a mask counts for."""
        return max(MIN_WORK, self.data.dim**2 * self._latent_dims())

    def _work_problems(
        self, masks: int, max_work: int, a_second: float, pointer: str, lower: str
    ) -> list[Problem]:
        """Return a problem if the masks take more than `max_work` multiplications."""
        each = self._mask_work()
        if masks * each <= max_work:
            return []
        days, allowed = (number / a_second / 86_400 for number in (masks * each, max_work))
        detail = (
            f"{masks} masks of {each} multiplications (D² · K, at least {MIN_WORK}) take two "
            f"cores {days:.3g} days; at most {allowed:.3g} are accepted: lower {lower}"
        )
        return [Problem(pointer, detail)]

    def _memory_problems(self, limits: Limits) -> list[Problem]:
        if (self.compute.memory_bytes or 0) > limits.memory_bytes:
            detail = f"at most {limits.memory_bytes >> 20}, as for the whole run"
            return [Problem("/compute/memory_mib", detail)]
        advice = "N · D, D², D · K², the masks of a step and all scores count"
        if problems := self.memory_problems(limits, advice):
            return problems
        one_mask = self._bytes_per_mask()
        if self.compute.memory_bytes is not None and self.compute.memory_bytes < one_mask:
            detail = f"one mask takes up to {(one_mask >> 20) + 1} MiB here: give that or more"
            return [Problem("/compute/memory_mib", detail)]
        return []

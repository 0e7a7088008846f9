"""Run experiments on PPCA and factor analysis."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mptcore.data.dataset import (
    Dataset,
    copies_warning,
    load_arrays,
    refuse_extreme,
    refuse_missing,
)
from mptcore.data.saved_facts import (
    facts_of,
    header_of,
    load_scaling,
    refuse_other_columns,
    save_heldout_rows,
    unnamed_columns_warning,
)
from mptcore.estimation.estimate import over_rows
from mptcore.estimation.evaluate import Evaluation, labelled
from mptcore.families.linear_gaussian.density import LowRankGaussian, log_probs
from mptcore.families.linear_gaussian.fit import MIN_SHARE, Fitted, fit_of
from mptcore.families.linear_gaussian.initial import initial_density
from mptcore.families.linear_gaussian.rounding import BY_RESIDUALS
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.families.linear_gaussian.rows import save_rows
from mptcore.families.linear_gaussian.trainer import NEVER, LinearGaussianTrainer
from mptcore.families.linear_gaussian.weights import FAMILY, save_densities
from mptcore.protocol.records import Artifact, Labels, Log, Point, Progress, Record, RunError, Stage
from mptcore.runtime.rng import generator_for
from mptcore.runtime.state import Records, RunState, TrainingState
from mptcore.specs import (
    FactorAnalysisModel,
    LinearGaussianExperiment,
    LinearGaussianSpec,
    PpcaModel,
    UploadData,
)
from mptcore.specs.compute import GPU_BATCH_BYTES
from mptcore.specs.families.linear_gaussian import MAX_ITERATIONS, constant_columns
from mptcore.specs.vectors import columns_are
from mptcore.training.loop import train

CPU = torch.device("cpu")
POINTS_APART = 1.1
"""Minimum ratio of the iterations of two points."""
NOT_CONVERGED = (
    f"the fit has not converged after {MAX_ITERATIONS} iterations: the LML of the model is not "
    "yet at its maximum"
)
AT_FLOOR = "at the lower bound of the noise variance"
FLOOR_ADVICE = (
    f"{MIN_SHARE:g} of a column's variance. The likelihood may have no maximum without this bound, "
    "and the LML then depends on it: leave out columns that others determine, or lower latent_dim"
)
MAX_SCALE_RATIO = 10.0
"""Ratio of two columns' standard deviations from which on a warning is given."""
SCALE_ADVICE = (
    "PPCA has the same noise in all of them, so the largest decide. Set data.standardize=columns, "
    "or use model.family=factor_analysis"
)
RAISED = "linear Gaussian models are computed in float64, not float32"


@dataclass(frozen=True)
class SeedModels:
    """Data and densities of one seed, and the generator of its masks."""

    seed: int
    dataset: Dataset
    densities: dict[str, LowRankGaussian]
    masks: torch.Generator


@dataclass
class LinearGaussianRun:
    """Train and score one spec in float64. In float32 a score has fewer correct digits than its
    standard error may need, or than an exact score should have."""

    spec: LinearGaussianExperiment
    state: RunState
    device: torch.device
    dtype: torch.dtype
    _dataset: Dataset | None = field(default=None, init=False)
    _shared: dict[str, LowRankGaussian] = field(default_factory=dict, init=False)

    def records(self, resumed: TrainingState | None) -> Records[None]:
        try:
            yield from self._records(resumed)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            advice = "use fewer latent dimensions or a lower noise_precision"
            detail = "a covariance is singular or too ill-conditioned for float64"
            raise RunError("error", f"{detail}: {advice} ({error})") from error

    def _records(self, resumed: TrainingState | None) -> Records[None]:
        if self.dtype != torch.float64:
            yield Log("info", RAISED)
        trained: dict[int, SeedModels] = {}
        if self.spec.train is not None:
            for seed in self.spec.seeds:
                trained[seed] = yield from self.models_of(seed)
            yield from self._train([*trained.values()], resumed)
        self.state.at_safe_point = True
        fitted: dict[int, LowRankGaussian] = {}
        has_folder = self.state.work_dir is not None
        is_saved = has_folder and not trained and self.spec.model.init == "maximum_likelihood"
        for seed in self.spec.seeds:
            models = trained.get(seed) or (yield from self.models_of(seed))
            yield from self._evaluate(models, {"seed": models.seed})
            if self.spec.keeps_rows or (is_saved and (not fitted or self.spec.data.seed == "run")):
                fitted[seed] = models.densities["model"]  # else all have the same
        if is_saved:
            yield self._saved(fitted, models.dataset)
        if has_folder and self.spec.keeps_rows:
            yield save_rows(fitted, models.dataset, self.state.work_dir)
        if has_folder and (file := save_heldout_rows(models.dataset, self.state.work_dir)):
            yield file

    @property
    def _models(self) -> tuple[LinearGaussianSpec | None, ...]:
        return self.spec.model, self.spec.baseline

    def models_of(self, seed: int) -> Records[SeedModels]:
        """Return the data and the models of a seed. They are built once if they do not depend on
        the seed."""
        spec = self.spec
        masks = torch.Generator().manual_seed(seed)
        dataset = self._dataset
        is_new = dataset is None
        if spec.data.seed == "run":
            # one generator, in the published order: the data, then the masks
            dataset = self._load(seed, masks)
        elif dataset is None:
            generator = torch.Generator().manual_seed(spec.data.seed)
            dataset = self._dataset = self._load(spec.data.seed, generator)
        refuse_missing(dataset, spec.missing_refusal)
        if is_new and isinstance(spec.data, UploadData):
            refuse_extreme(dataset, torch.float64)
            yield from self._scale_warning(dataset)
            experiments = [None if m is None else m.experiment for m in self._models]
            unnamed = unnamed_columns_warning(FAMILY, experiments, dataset.columns)
            for warning in filter(None, (copies_warning(dataset), unnamed)):
                yield Log("warning", warning)
        if spec.estimates_each_noise:
            refuse_constant_columns(dataset)
        for name, model in {"model": spec.model, "baseline": spec.baseline}.items():
            if model is None:
                continue
            if name not in self._shared or spec.data.seed == "run" or model.init not in _SEEDLESS:
                labels: Labels = {"seed": seed, "model": name} if spec.baseline else {"seed": seed}
                self._shared[name] = yield from self._initial(model, dataset, labels)
        return SeedModels(seed, dataset, dict(self._shared), masks)

    def _load(self, seed: int, generator: torch.Generator) -> Dataset:
        """Load the data. If a model was fitted to standardized data, they get the same shift and
        scale. Raises RunError."""
        experiments = [None if model is None else model.experiment for model in self._models]
        scaling = load_scaling(FAMILY, experiments, self.spec.data)
        dataset = load_arrays(self.spec.data, seed, generator, scaling)
        refuse_other_columns(FAMILY, experiments, dataset.columns)
        return dataset

    def _scale_warning(self, dataset: Dataset) -> Iterator[Record]:
        """Yield a warning if columns in different units count very differently in PPCA."""
        if not any(isinstance(model, PpcaModel) for model in self._models):
            return
        scale, names = dataset.scale, dataset.columns or [*map(str, range(dataset.dim))]
        smallest, largest = int(scale.argmin()), int(scale.argmax())
        if scale[largest] <= MAX_SCALE_RATIO * scale[smallest]:
            return
        units = ", ".join(f"{scale[c].item():.3g} in {names[c]}" for c in (smallest, largest))
        message = f"standard deviations differ much between columns: {units}. {SCALE_ADVICE}"
        yield Log("warning", message)

    def _initial(
        self, model: LinearGaussianSpec, dataset: Dataset, labels: Labels
    ) -> Records[LowRankGaussian]:
        """Return the untrained density of a model. A fit yields its iterations and their LML, fewer
        of the later ones."""
        seed = int(labels["seed"])
        fit = fit_of(model, dataset)
        if fit is None:
            return initial_density(model, dataset, seed, generator_for(seed, "init"))
        recorded = 0
        for fitted in fit:
            if fitted.iteration >= POINTS_APART * recorded:
                yield from self._steps_of_fit(fitted, labels)
                recorded = fitted.iteration
        if fitted.iteration > recorded:
            yield from self._steps_of_fit(fitted, labels)
        if not fitted.converged:
            yield Log("warning", f"{labelled(labels)}: {NOT_CONVERGED}")
        if isinstance(model, FactorAnalysisModel):
            yield from self._floor_warning(fitted.density, dataset, labels)
        return fitted.density

    def _floor_warning(
        self, density: LowRankGaussian, dataset: Dataset, labels: Labels
    ) -> Iterator[Record]:
        """Yield a warning with the columns whose fitted noise variance is at its lower bound."""
        share = density.noise_variance / dataset.scale.square()
        names = dataset.columns or [*map(str, range(dataset.dim))]
        floored = (share <= MIN_SHARE * (1 + 1e-6)).nonzero().flatten().tolist()
        if floored:
            columns = [names[c] for c in floored]
            which = columns_are(columns, dataset.columns is not None, AT_FLOOR)
            yield Log("warning", f"{labelled(labels)}: {which}, {FLOOR_ADVICE}")

    def _steps_of_fit(self, fitted: Fitted, labels: Labels) -> Iterator[Record]:
        yield Point("lml_fitting", fitted.iteration, fitted.lml, 0.0, 0, labels)
        state = self.state
        total = state.max_masks - state.left_out(self.spec.evaluations)
        stage = Stage("fitting", fitted.iteration, MAX_ITERATIONS, "iterations")
        yield Progress(state.masks, total, "masks", stage)

    def _evaluate(self, models: SeedModels, labels: Labels) -> Records[None]:
        yield from self._evaluation(models, models.dataset.x, labels).records(models.masks)
        if self.spec.scores_rows:
            density = models.densities["model"]
            of_model: Labels = {**labels, "model": "model"} if self.spec.baseline else labels
            yield over_rows(log_probs(density, models.dataset.x), of_model)
        heldout = models.dataset.heldout
        if heldout is not None:
            of_rows = {
                name: log_probs(density, heldout)
                for name, density in models.densities.items()
                if "epoch" not in labels
            }
            held = self._evaluation(models, heldout, labels)
            yield from held.heldout_records(models.masks, of_rows)

    def _evaluation(self, models: SeedModels, x: Tensor, labels: Labels) -> Evaluation:
        """Return the evaluation of the models on observations x (N, D)."""
        solvers = {
            name: solver_for(density, x, self.device) for name, density in models.densities.items()
        }
        on_gpu = self.device.type == "cuda"
        memory = self.spec.compute.memory_bytes or (GPU_BATCH_BYTES if on_gpu else None)
        return Evaluation(self.spec.evaluate, solvers, labels, self.state, memory)

    def _train(self, of_seeds: list[SeedModels], resumed: TrainingState | None) -> Records[None]:
        """Train the models in place."""
        assert self.spec.train is not None
        trainer = LinearGaussianTrainer(
            self.spec.model,
            self.spec.train,
            [models.seed for models in of_seeds],
            [models.densities["model"] for models in of_seeds],
            [models.dataset for models in of_seeds],
            self.device,
        )

        def curves(epoch: int) -> Records[None]:
            for models, density in zip(of_seeds, trainer.densities(), strict=True):
                masks = generator_for(models.seed, f"curve {epoch}")
                now = replace(models, densities={"model": _on_cpu(density)}, masks=masks)
                labels: Labels = {"seed": models.seed, "epoch": epoch}
                yield from self._evaluate(now, labels)

        yield from train(trainer, self.state, resumed, curves)
        if trainer.by_residuals_from != NEVER:
            yield Log("info", f"from epoch {trainer.by_residuals_from} on: {BY_RESIDUALS}")
        for models, density in zip(of_seeds, trainer.densities(), strict=True):
            models.densities["model"] = _on_cpu(density)
        densities = {models.seed: models.densities["model"] for models in of_seeds}
        yield self._saved(densities, of_seeds[0].dataset)

    def _saved(self, densities: Mapping[int, LowRankGaussian], data: Dataset) -> Artifact | Log:
        """Save the densities of all seeds. Standardized data and uploads are those of all seeds."""
        facts = facts_of(data, self.spec.data), header_of(data)
        return save_densities(densities, self.state.work_dir, *facts)


def refuse_constant_columns(data: Dataset) -> None:
    """Raise RunError if a column has one value only, so that its noise variance has no maximum.
    Missing values do not count."""
    if constant := data.constant:
        raise RunError("invalid", constant_columns(constant, data.columns is not None))


def _on_cpu(density: LowRankGaussian) -> LowRankGaussian:
    return density.to(CPU, torch.float64)


_SEEDLESS = ("generator", "maximum_likelihood")
"""Initialisations that give every seed the same density."""

"""Run experiments on VAEs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import Model
from mptcore.families.linear_gaussian.density import LowRankGaussian, log_probs
from mptcore.families.linear_gaussian.initial import initial_density
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.families.vae.ais import annealed
from mptcore.families.vae.build import FAMILY, build_vae, for_scores, weights_header
from mptcore.families.vae.networks import Encoder
from mptcore.families.vae.pictures import pictures
from mptcore.families.vae.trainer import TrainingStart, VaeTrainer
from mptcore.families.vae.vae import ROWS, divergence
from mptcore.protocol.records import Artifact, Labels, Log, Metric, Record, RunError
from mptcore.runtime.rng import generator_for
from mptcore.runtime.state import Records, RunState, TrainingState
from mptcore.runtime.tensor_files import keep_weights
from mptcore.specs import Bernoulli, PpcaModel, UploadData, VaeExperiment
from mptcore.specs.families.vae.models import Objective
from mptcore.training.loop import train

ACTIVE = 0.01
"""KL divergence in nats below which a latent dimension carries no information about the data."""


@dataclass(frozen=True)
class LoadedData:
    """Data of a seed: the scored and held-out observations on the networks' device and in their
    precision, and the state of the generator before they were drawn."""

    dataset: Dataset
    x: Tensor  # (N, D)
    heldout: Tensor | None  # (H, D)
    generator_state: Tensor


@dataclass
class VaeRun:
    """Trains and scores one spec."""

    spec: VaeExperiment
    state: RunState
    device: torch.device
    dtype: torch.dtype
    _data: dict[int, LoadedData] = field(default_factory=dict, init=False)
    _baselines: dict[int, LowRankGaussian] = field(default_factory=dict, init=False)

    def records(self, resumed: TrainingState | None) -> Records[None]:
        starts = [start for seed in self.spec.seeds for start in self._starts(seed)]
        if isinstance(self.spec.data, UploadData):
            dataset = starts[0].dataset
            experiments = [self.spec.model.experiment]
            unnamed = unnamed_columns_warning(FAMILY, experiments, dataset.columns)
            for warning in filter(None, (copies_warning(dataset), unnamed)):
                yield Log("warning", warning)
        if self.spec.train is not None:
            yield from self._train(starts, resumed)
        self.state.at_safe_point = True
        for start in starts:
            yield from self._conclude(start)

    def _starts(self, seed: int) -> Iterator[TrainingStart]:
        """Yield a seed's start once for each objective."""
        spec = self.spec
        loaded = self._loaded(seed)
        objectives: tuple[Objective, ...] = spec.train.objective if spec.train else ("mpt",)
        for objective in objectives:
            vae = build_vae(spec, loaded.x, seed, objective)
            labels: Labels = {"seed": seed}
            if len(objectives) > 1:
                labels = {**labels, "objective": objective}
            data = loaded.dataset, loaded.x, loaded.heldout
            yield TrainingStart(seed, objective, labels, vae, *data)

    def _loaded(self, seed: int) -> LoadedData:
        """Load the data of a seed. All its starts share them."""
        if self.spec.data.seed != "run":
            seed = self.spec.data.seed
        if seed not in self._data:
            generator = torch.Generator().manual_seed(seed)
            scaling = load_scaling(FAMILY, [self.spec.model.experiment], self.spec.data)
            dataset = load_arrays(self.spec.data, seed, generator, scaling)
            refuse_other_columns(FAMILY, [self.spec.model.experiment], dataset.columns)
            refuse_missing(dataset, self.spec.missing_refusal)
            if isinstance(self.spec.data, UploadData):
                refuse_extreme(dataset, self.dtype)
            if isinstance(self.spec.model.likelihood, Bernoulli):
                _check_binary(dataset)
            x, heldout = dataset.x.to(self.device, self.dtype), dataset.heldout
            if heldout is not None:
                heldout = heldout.to(self.device, self.dtype)
            self._data[seed] = LoadedData(dataset, x, heldout, generator.get_state())
        return self._data[seed]

    def _train(self, starts: list[TrainingStart], resumed: TrainingState | None) -> Records[None]:
        assert self.spec.train is not None
        trainer = VaeTrainer(self.spec.train, starts, self.spec.seeds)

        def curves(epoch: int) -> Records[None]:
            for start in starts:
                labels = {**start.labels, "epoch": epoch}
                masks = generator_for(start.seed, f"curve {epoch}")
                yield from self._evaluate(start, labels, masks)

        yield from train(trainer, self.state, resumed, curves)
        yield self._keep(starts)

    def _conclude(self, start: TrainingStart) -> Records[None]:
        masks = torch.Generator().manual_seed(start.seed)
        if self.spec.data.seed == "run":  # the data, then the masks, one generator
            masks.set_state(self._loaded(start.seed).generator_state)
        yield from self._evaluate(start, start.labels, masks)
        if start.vae.encoder is not None:
            yield from collapse(start.vae.encoder, start.x, start.labels)
        if self.spec.evaluate.ais is not None:
            yield from annealed(start, self.spec.evaluate.ais)
        if start.seed == self.spec.seeds[0] and self.state.work_dir is not None:
            yield from pictures(start, self.state.work_dir)
            if (file := save_heldout_rows(start.dataset, self.state.work_dir)) is not None:
                yield file

    def _evaluate(
        self, start: TrainingStart, labels: Labels, masks: torch.Generator
    ) -> Records[None]:
        """Yield the scores and the LML of the data, and both of the held-out observations."""
        models = yield from self._models(start, start.x, start.dataset.x, "lml")
        yield from Evaluation(self.spec.evaluate, models, labels, self.state).records(masks)
        if start.heldout is None or start.dataset.heldout is None:
            return
        heldout = start.dataset.heldout
        models = yield from self._models(start, start.heldout, heldout, "held")
        log_probs = {} if "epoch" in labels else self._log_probs(models, start, heldout)
        held = Evaluation(self.spec.evaluate, models, labels, self.state)
        yield from held.heldout_records(masks, log_probs)

    def _log_probs(
        self, models: Mapping[str, Model], start: TrainingStart, heldout: Tensor
    ) -> dict[str, Tensor]:
        """Return log p(x) of each held-out observation by model, where it is known."""
        model_log_probs = models["model"].evidence().log_probs
        by_model = {} if model_log_probs is None else {"model": model_log_probs}
        if self.spec.baseline is not None:
            by_model["baseline"] = log_probs(self._baseline(self.spec.baseline, start), heldout)
        return by_model

    def _models(
        self, start: TrainingStart, x: Tensor, as_loaded: Tensor, draws: str
    ) -> Records[dict[str, Model]]:
        """Return the models of observations x (N, D), which a baseline takes as they were loaded.
        `draws` names the generator of the evidence."""
        vae = for_scores(start.vae, self.spec)
        evidence = yield from vae.evidence(x, generator_for(start.seed, draws, self.device))
        models: dict[str, Model] = {"model": vae.scored_on(x, start.seed, evidence)}
        if self.spec.baseline is not None:
            baseline = self._baseline(self.spec.baseline, start)
            models["baseline"] = solver_for(baseline, as_loaded, torch.device("cpu"))
        return models

    def _baseline(self, spec: PpcaModel, start: TrainingStart) -> LowRankGaussian:
        seed = start.seed
        if seed not in self._baselines:
            generator = generator_for(seed, "init")
            self._baselines[seed] = initial_density(spec, start.dataset, seed, generator)
        return self._baselines[seed]

    def _keep(self, starts: Sequence[TrainingStart]) -> Artifact | Log:
        tensors = {
            f"{start.objective}/{start.seed}/{name}": value
            for start in starts
            for name, value in start.vae.state_dict().items()
        }
        tensors |= facts_of(starts[0].dataset, self.spec.data)
        header = {**weights_header(self.spec), **header_of(starts[0].dataset)}
        return keep_weights(FAMILY, tensors, header, self.state.work_dir)


@torch.no_grad()
def collapse(encoder: Encoder, x: Tensor, labels: Labels) -> Iterator[Record]:
    """Yield how many latent dimensions the encoder uses, and their divergence in nats."""
    sums = torch.stack([divergence(*encoder(part)).sum(0) for part in torch.split(x, ROWS)])
    divergences = sums.sum(0) / len(x)  # (K,)
    active = int((divergences > ACTIVE).sum())
    yield Metric("kl", divergences.sum().item(), 0.0, labels)
    yield Metric("active_units", active, 0.0, labels)
    if active == 0:
        advice = "train longer, or with a smaller learning_rate or a higher noise_precision"
        detail = f"every latent dimension has a KL below {ACTIVE} nats, so z is independent of x"
        start = ", ".join(f"{name} {value}" for name, value in labels.items())
        yield Log("warning", f"collapse ({start}): {detail}; {advice}")


def _check_binary(dataset: Dataset) -> None:
    for x in (dataset.x, dataset.heldout):
        if x is not None and not ((x == 0) | (x == 1)).all():
            detail = "set data.binarize to threshold or stochastic, or use the likelihood gaussian"
            raise RunError("invalid", f"the likelihood bernoulli needs values 0 and 1: {detail}")

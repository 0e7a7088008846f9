"""Experiments on VAEs: from a spec to its records."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mptcore.data.arrays import Dataset, load_arrays
from mptcore.estimation.evaluate import Evaluation, Work, lml_metrics
from mptcore.estimation.model import Evidence, MaskedModel
from mptcore.families.linear_gaussian.densities import heldout_lml, initial_density, scorable
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.vae import build, diagnose
from mptcore.families.vae.evidence import Resting, by_grid, by_iwae
from mptcore.families.vae.grid_vae import GridScored, GridVae
from mptcore.families.vae.pictures import pictures
from mptcore.families.vae.sampled_vae import DeepScored, DeepVae
from mptcore.families.vae.trainer import LatentTrainer, Network, Unit
from mptcore.protocol.records import Artifact, Labels, Log, Metric, RunError
from mptcore.runtime.rng import stream
from mptcore.runtime.session import Session, Tape, TrainingState
from mptcore.runtime.tensor_files import keep_weights
from mptcore.specs import Bernoulli, Iwae, LatentExperiment, PpcaModel
from mptcore.specs.families.vae.models import Objective
from mptcore.training.loop import train


@dataclass(frozen=True)
class Loaded:
    """The data of a seed; what is scored and held out, where and as precise as the networks; and
    where the stream stands that they were drawn from."""

    dataset: Dataset
    x: Tensor
    heldout: Tensor | None
    stream: Tensor


@dataclass
class LatentRun:
    """Trains and scores one spec."""

    spec: LatentExperiment
    session: Session
    device: torch.device
    dtype: torch.dtype
    _done: int = field(default=0, init=False)
    _data: dict[int, Loaded] = field(default_factory=dict, init=False)
    _baselines: dict[int, LowRankGaussian] = field(default_factory=dict, init=False)

    @property
    def total(self) -> int:
        """Masks to be scored in all."""
        return self.spec.mask_count()

    def records(self, resumed: TrainingState | None) -> Work:
        """All records, each with the number of masks scored so far. Raises RunError."""
        units = [unit for seed in self.spec.seeds for unit in self._units(seed)]
        if self.spec.train is not None:
            yield from self._train(units, resumed)
        self.session.at_rest = True
        for unit in units:
            before = self._done
            for done, record in self._conclude(unit):
                self._done = before + done
                yield self._done, record

    def _units(self, seed: int) -> Iterator[Unit]:
        """A seed's start, once for each objective."""
        spec = self.spec
        loaded = self._loaded(seed)
        objectives: tuple[Objective, ...] = spec.train.objectives if spec.train else ("mpt",)
        for objective in objectives:
            network = build.network(spec.model, loaded.x, seed, objective)
            labels: Labels = {"seed": seed}
            if len(objectives) > 1:
                labels = {**labels, "objective": objective}
            given = loaded.dataset, loaded.x, loaded.heldout
            yield Unit(seed, objective, labels, network, *given)

    def _loaded(self, seed: int) -> Loaded:
        """All starts share what is loaded once."""
        if self.spec.data.seed != "run":
            seed = self.spec.data.seed
        if seed not in self._data:
            draws = torch.Generator().manual_seed(seed)
            dataset = load_arrays(self.spec.data, seed, draws)
            if isinstance(self.spec.model.likelihood, Bernoulli):
                _refuse_what_is_not_binary(dataset)
            x = dataset.x.to(self.device, self.dtype)
            heldout = dataset.heldout
            placed = None if heldout is None else heldout.to(self.device, self.dtype)
            self._data[seed] = Loaded(dataset, x, placed, draws.get_state())
        return self._data[seed]

    def _train(self, units: list[Unit], resumed: TrainingState | None) -> Work:
        assert self.spec.train is not None
        trainer = LatentTrainer(self.spec.train, units, self.spec.seeds)

        def curves(epoch: int) -> Work:
            done = 0
            for unit in units:
                before = done
                labels = {**unit.labels, "epoch": epoch}
                draws = stream(unit.seed, f"curve {epoch}")
                for scored, record in self._evaluate(unit, labels, Tape(), draws):
                    done = before + scored
                    yield done, record

        for done, record in train(trainer, self.session, resumed, curves):
            self._done = done
            yield done, record
        final = trainer.state(self.session.seq, self._done)
        self.session.training = lambda: final
        yield self._done, self._keep(units)

    def _conclude(self, unit: Unit) -> Work:
        done = 0
        masks = torch.Generator().manual_seed(unit.seed)
        if self.spec.data.seed == "run":  # the data, then the masks, one stream
            masks.set_state(self._loaded(unit.seed).stream)
        for done, record in self._evaluate(unit, unit.labels, self.session.tape, masks):
            yield done, record
        if unit.network.encoder is not None:
            for found in diagnose.collapse(unit.network.encoder, unit.x, unit.labels):
                yield done, found
        if self.spec.evaluate.ais is not None and isinstance(unit.network, DeepVae):
            method = self.spec.lml_method()
            assert isinstance(method, Iwae)
            ais = self.spec.evaluate.ais
            for record in diagnose.annealed(unit, unit.network, ais, method.samples):
                yield done, record
        if unit.seed == self.spec.seeds[0] and self.session.work_dir is not None:
            for artifact in pictures(unit, self.session.work_dir):
                yield done, artifact

    def _evaluate(self, unit: Unit, labels: Labels, tape: Tape, masks: torch.Generator) -> Work:
        """Scores, and the LML on the data and on what is held out."""
        network = build.for_scores(unit.network, self.spec)
        evidence = yield from self._evidence(network, unit.x, stream(unit.seed, "lml"))
        models: dict[str, MaskedModel] = {"model": self._scored(network, unit, evidence)}
        baseline = None
        if self.spec.baseline is not None:
            baseline = self._baseline(self.spec.baseline, unit)
            models["baseline"] = scorable(baseline, unit.dataset, self.device, torch.float64)
        evaluation = Evaluation(self.spec.evaluate, models, labels, tape)
        done = 0
        for done, record in evaluation.records(masks):
            yield done, record
        if unit.heldout is None:
            return
        evidence = yield from self._evidence(network, unit.heldout, stream(unit.seed, "held"), done)
        for record in lml_metrics("lml_heldout", evidence, evaluation.labels_of("model")):
            yield done, record
        if baseline is not None and unit.dataset.heldout is not None:
            value = heldout_lml(baseline, unit.dataset.heldout)
            yield done, Metric("lml_heldout", value, 0.0, evaluation.labels_of("baseline"))

    def _baseline(self, spec: PpcaModel, unit: Unit) -> LowRankGaussian:
        if unit.seed not in self._baselines:
            draws = stream(unit.seed, "init")
            self._baselines[unit.seed] = initial_density(spec, unit.dataset, unit.seed, draws)
        return self._baselines[unit.seed]

    def _scored(self, network: Network, unit: Unit, evidence: Evidence) -> MaskedModel:
        if isinstance(network, GridVae):
            return GridScored(network, unit.x, evidence)
        return DeepScored(network, unit.x, unit.seed, evidence)

    def _evidence(
        self, network: Network, x: Tensor, draws: torch.Generator, done: int = 0
    ) -> Generator[tuple[int, None], None, Evidence]:
        method = self.spec.lml_method()
        if isinstance(network, GridVae):
            assert not isinstance(method, Iwae)
            yield done, None
            return by_grid(network, method, x, self.spec.model.latent_dim)
        assert isinstance(method, Iwae)
        for _ in (work := Resting(by_iwae(network, method.samples, x, draws))):
            yield done, None
        return work.result

    def _keep(self, units: Sequence[Unit]) -> Artifact | Log:
        if self.session.work_dir is None:
            return Log("info", "the weights are not kept: no work directory was given")
        tensors = {
            f"{unit.objective}/{unit.seed}/{name}": value
            for unit in units
            for name, value in unit.network.state_dict().items()
        }
        return keep_weights(
            build.FAMILY, tensors, build.weights_header(self.spec), self.session.work_dir
        )


def _refuse_what_is_not_binary(dataset: Dataset) -> None:
    for x in (dataset.x, dataset.heldout):
        if x is not None and not ((x == 0) | (x == 1)).all():
            detail = "set data.binarize to threshold or stochastic, or use the likelihood gaussian"
            raise RunError("invalid", f"the likelihood bernoulli needs values 0 and 1: {detail}")

"""Experiments on vectors: from a spec to its records."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from mptcore.data.arrays import Dataset, load_arrays
from mptcore.estimation.evaluate import Evaluation, Work
from mptcore.estimation.model import TractableModel
from mptcore.families.linear_gaussian.densities import heldout_lml, initial_density, scorable
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.trainer import Trainer
from mptcore.families.linear_gaussian.weights import keep_densities
from mptcore.protocol.records import Artifact, Labels, Log, Metric, RunError
from mptcore.runtime.rng import stream
from mptcore.runtime.session import Session, Tape, TrainingState
from mptcore.specs import VectorExperiment
from mptcore.training.loop import train


@dataclass(frozen=True)
class _Start:
    """One seed's data and models, and the stream its masks are drawn from."""

    seed: int
    dataset: Dataset
    densities: dict[str, LowRankGaussian]
    masks: torch.Generator


@dataclass
class VectorRun:
    """Trains and scores one spec."""

    spec: VectorExperiment
    session: Session
    device: torch.device
    dtype: torch.dtype
    done: int = 0

    @property
    def total(self) -> int:
        """Masks to be scored in all."""
        return self.spec.mask_count()

    def records(self, resumed: TrainingState | None) -> Work:
        """All records, each with the number of masks scored so far. Raises RunError."""
        try:
            yield from self._records(resumed)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            precision = self.spec.compute.precision
            cure = "use precision float64, fewer latent dimensions or a lower noise_precision"
            detail = f"a covariance is singular or too ill-conditioned for {precision}"
            raise RunError("error", f"{detail}: {cure} ({error})") from error

    def _records(self, resumed: TrainingState | None) -> Work:
        starts = _starts(self.spec)
        if self.spec.train is not None:
            trained = list(starts)
            yield from self._train(trained, resumed)
            starts = iter(trained)
        self.session.at_rest = True
        for start in starts:
            before = self.done
            for scored, record in self._evaluate(start, {"seed": start.seed}, self.session.tape):
                self.done = before + scored
                yield self.done, record

    def _evaluate(self, start: _Start, labels: Labels, tape: Tape) -> Work:
        models: dict[str, TractableModel] = {
            name: scorable(density, start.dataset, self.device, self.dtype)
            for name, density in start.densities.items()
        }
        memory = self.spec.compute.memory_bytes
        evaluation = Evaluation(self.spec.evaluate, models, labels, tape, memory)
        done = 0
        for done, record in evaluation.records(start.masks):
            yield done, record
        if start.dataset.heldout is not None:
            for name in models:
                value = heldout_lml(start.densities[name], start.dataset.heldout)
                yield done, Metric("lml_heldout", value, 0.0, evaluation.labels_of(name))

    def _train(self, starts: list[_Start], resumed: TrainingState | None) -> Work:
        """Trains the starts in place."""
        assert self.spec.train is not None
        trainer = Trainer(
            self.spec.model,
            self.spec.train,
            [start.seed for start in starts],
            [start.densities["model"] for start in starts],
            [start.dataset for start in starts],
            self.device,
            self.dtype,
        )

        def curves(epoch: int) -> Work:
            return self._curves(trainer, starts, epoch)

        for done, record in train(trainer, self.session, resumed, curves):
            self.done = done
            yield done, record
        final = trainer.state(self.session.seq, self.done)
        self.session.training = lambda: final
        for start, density in zip(starts, trainer.densities(), strict=True):
            start.densities["model"] = density.to(torch.device("cpu"), torch.float64)
        yield self.done, self._keep(starts)

    def _curves(self, trainer: Trainer, starts: list[_Start], epoch: int) -> Work:
        done = 0
        for start, density in zip(starts, trainer.densities(), strict=True):
            now = replace(
                start,
                densities={"model": density.to(torch.device("cpu"), torch.float64)},
                masks=stream(start.seed, f"curve {epoch}"),
            )
            labels = {"seed": start.seed, "epoch": epoch}
            before = done
            for scored, record in self._evaluate(now, labels, Tape()):
                done = before + scored
                yield done, record

    def _keep(self, starts: list[_Start]) -> Artifact | Log:
        if self.session.work_dir is None:
            return Log("info", "the weights are not kept: no work directory was given")
        return keep_densities({s.seed: s.densities["model"] for s in starts}, self.session.work_dir)


def _starts(spec: VectorExperiment) -> Iterator[_Start]:
    """Data and models for each seed, made once where no seed changes them."""
    models = {"model": spec.model} | ({"baseline": spec.baseline} if spec.baseline else {})
    shared_data = None
    shared: dict[str, LowRankGaussian] = {}
    for seed in spec.seeds:
        masks = torch.Generator().manual_seed(seed)
        if spec.data.seed == "run":  # the published order: the data, then the masks, one stream
            dataset = load_arrays(spec.data, seed, masks)
        else:
            draws = torch.Generator().manual_seed(spec.data.seed)
            dataset = shared_data = shared_data or load_arrays(spec.data, spec.data.seed, draws)
        for name, model in models.items():
            if name not in shared or spec.data.seed == "run" or model.init not in _SEEDLESS:
                shared[name] = initial_density(model, dataset, seed, stream(seed, "init"))
        yield _Start(seed, dataset, dict(shared), masks)


_SEEDLESS = ("generator", "maximum_likelihood")

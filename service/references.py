"""What a spec names by id must be its owner's or shared with the lab, and fit."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, PlainText, Problem, SpecError, UploadData
from service.datasets import store as datasets
from service.datasets.models import Dataset
from service.datasets.sizes import NO_UPLOAD, SIZES, shape_of
from service.experiments import store as experiments
from service.experiments.models import UNFINISHED, Artifact, Experiment, Status
from service.settings import Settings

WEIGHTS = "weights.safetensors"
"""The file in which a training run keeps what it trained."""


class Names(NamedTuple):
    """The ids of uploads and experiments that specs name."""

    datasets: frozenset[str]
    experiments: frozenset[str]

    @classmethod
    def of(cls, specs: Iterable[ExperimentSpec], after: Iterable[str] = ()) -> "Names":
        specs = list(specs)
        uploads = {one for spec in specs if (one := getattr(spec.data, "dataset", None))}
        weights = {one for spec in specs for _, one in _weights(spec)}
        return cls(frozenset(uploads), frozenset(weights.union(after)))


@dataclass(frozen=True, slots=True)
class Named:
    """The uploads and experiments that specs name and their owner may read, by their ids."""

    names: Names
    datasets: Mapping[str, Dataset]
    experiments: Mapping[str, Experiment]
    weights: Mapping[str, str]
    """The SHA-256 of what these experiments kept, of those that did."""

    @classmethod
    def by(cls, session: Session, owner_id: int, names: Names) -> "Named":
        """Look up what specs name."""
        found = experiments.named(session, owner_id, names.experiments)
        return cls(
            names,
            {one.id: one for one in datasets.readable_of(session, owner_id, names.datasets)},
            {one.id: one for one in found},
            {one.experiment_id: one.sha256 for one in _kept(session, names.experiments)},
        )

    @property
    def state(self) -> tuple[object, ...]:
        """All that decides whether the specs may run: equal as long as nothing has changed."""
        statuses = {one.id: one.status for one in self.experiments.values()}
        return {*self.datasets}, statuses, self.weights

    def digests(self, spec: ExperimentSpec) -> list[str] | None:
        """Of the uploads and weights that a spec names; None where some are not there yet."""
        upload = getattr(spec.data, "dataset", None)
        found = [] if upload is None else [self.datasets[upload].sha256]
        for _, one in _weights(spec):
            if one not in self.weights or self.experiments[one].status != Status.SUCCEEDED:
                return None
            found.append(self.weights[one])
        return found

    def unfinished(self, spec: ExperimentSpec, after: Iterable[str]) -> list[str]:
        """Those of the experiments that it comes after that have not ended."""
        named = dict.fromkeys([*after, *(one for _, one in _weights(spec))])
        return [one for one in named if self.experiments[one].status in UNFINISHED]


def _kept(session: Session, experiment_ids: Collection[str]) -> Sequence[Artifact]:
    """The weights that these experiments kept."""
    if not experiment_ids:
        return ()
    wanted = (Artifact.experiment_id.in_(experiment_ids), Artifact.file == WEIGHTS)
    return session.scalars(select(Artifact).where(*wanted)).all()


def _weights(spec: ExperimentSpec) -> Iterator[tuple[str, str]]:
    """The experiments whose weights a spec takes, by the part that does."""
    for part in ("model", "baseline"):  # of which a family may have none, nor take weights
        named = getattr(getattr(spec, part, None), "experiment", None)
        if named is not None:
            yield part, named


def reference_problems(named: Named, spec: ExperimentSpec) -> list[Problem]:
    """What is wrong with the uploads and experiments that a spec names."""
    problems = list(_experiment_problems(named, spec))
    match spec.data:
        case UploadData():
            problems += _upload_problems(named, spec.data)
        case PlainText() if spec.data.dataset is not None:
            problems += _text_problems(named, spec.data.dataset, spec.data.column)
    return problems


def after_problems(named: Named, after: Sequence[str]) -> Iterator[Problem]:
    """What is wrong with the experiments that another is to come after."""
    for i, one in enumerate(after):
        found = named.experiments.get(one)
        if found is None:
            yield Problem(f"/after/{i}", "the id of an experiment, yours or shared with the lab")
        elif found.status in FAILED:
            detail = f"this experiment is {found.status}: what comes after it could not run"
            yield Problem(f"/after/{i}", detail)


FAILED = (Status.FAILED, Status.CANCELLED)


def _text_problems(named: Named, dataset_id: str, column: str) -> Iterator[Problem]:
    dataset = named.datasets.get(dataset_id)
    if dataset is None:
        yield Problem("/data/dataset", NO_UPLOAD)
    elif dataset.dim is not None:
        yield Problem("/data/dataset", "this upload holds numbers, not text")
    elif dataset.columns is not None and column not in dataset.columns:
        have = ", ".join(dataset.columns)
        yield Problem("/data/column", f"the upload's columns of text are {have}; not {column}")


def _upload_problems(named: Named, data: UploadData) -> Iterator[Problem]:
    try:
        shape = shape_of(named.datasets.get(data.dataset), data.array, data.columns)
    except SpecError as error:
        yield from error.problems
        return
    for name, found in zip(SIZES, shape, strict=True):
        if getattr(data, name) != found:
            detail = f"the upload's {name} is {found}, not {getattr(data, name)}"
            yield Problem(f"/data/{name}", detail)


def _experiment_problems(named: Named, spec: ExperimentSpec) -> Iterator[Problem]:
    for part, one in _weights(spec):
        found = named.experiments.get(one)
        if found is None or found.status in FAILED or found.spec.get("train") is None:
            detail = (
                "the id of an experiment, yours or shared with the lab, that trains a model and "
                "did not fail"
            )
            yield Problem(f"/{part}/experiment", detail)


def input_files(
    session: Session, settings: Settings, spec: dict[str, Any]
) -> dict[str, dict[str, str]]:
    """The files of the uploads and experiments that a stored spec names, by id, each with the
    SHA-256 that was recorded. What has been deleted is not there: the run will say so."""
    uploads = session.scalars(select(Dataset).where(Dataset.id == spec["data"].get("dataset")))
    found = {one.id: _input(settings.datasets(one.id) / one.file, one.sha256) for one in uploads}
    models = [spec.get("model") or {}, spec.get("baseline") or {}]
    named = [model["experiment"] for model in models if model.get("experiment")]
    for one in _kept(session, named):
        folder = settings.artifacts(one.experiment_id, one.attempt)
        found[one.experiment_id] = _input(folder / one.file, one.sha256)
    return found


def _input(file: Path, sha256: str) -> dict[str, str]:
    return {"file": str(file.absolute()), "sha256": sha256}

"""Uploads and experiments that a spec refers to. They must be its owner's or shared with the lab,
and fit the spec."""

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, PlainText, Problem, SpecError, UploadData
from mptcore.specs.data.reading import OPTIONS_FILE
from mptcore.specs.data.text import too_few
from service.accounts.permissions import readable_ones
from service.datasets.files import options_file
from service.datasets.models import Dataset, forget_contents
from service.datasets.sizes import MAX_KNOWN, NO_UPLOAD, SIZES, listed, shape_of
from service.db.visibility import readable, reader
from service.experiments.models import UNFINISHED, Artifact, Experiment, Status
from service.settings import Settings

MAX_READ_BYTES = 20_000
"""Maximum size of a spec whose model is compared before the run. Each fact parses the whole spec,
and one with many bytes has lists of texts or columns."""
WEIGHTS = "weights.safetensors"
"""Name of the file with the weights that an experiment has trained or fitted."""


class Trained(NamedTuple):
    """Facts on the model that an experiment trains or fits, from its spec."""

    latent_dim: int | None
    """None for a model without, and where the spec is too large to be read."""
    dim: int | None
    """Dimensions of its data, likewise."""
    is_standardized: bool
    """True if its data are standardized."""


@dataclass(frozen=True, slots=True)
class ReferencedInputs:
    """The uploads and experiments that specs refer to and their owner may read, by id."""

    datasets: Mapping[str, Dataset]
    statuses: Mapping[str, str]
    """Status of each experiment. Nothing else is read: a request may name 20,000, each with a large
    spec."""
    trained: Mapping[str, Trained]
    """The models of those experiments whose weights are used and that train or fit one."""
    weights: Mapping[str, str]
    """SHA-256 of the weights, by experiment that has kept them."""
    ids: tuple[Collection[str], Collection[str], Collection[str]]
    """Ids of the uploads, of the experiments whose weights are used, and of those that the specs
    come after, also of those that were not found."""
    latest: deque[str] = field(default_factory=deque)
    """The uploads whose contents may be in memory."""

    @classmethod
    def of(
        cls,
        session: Session,
        owner_id: int,
        specs: Collection[ExperimentSpec],
        after: Iterable[str] = (),
    ) -> "ReferencedInputs":
        """Look up the inputs of specs, and the experiments that they come after."""
        uploads = {one for spec in specs if (one := getattr(spec.data, "dataset", None))}
        weights = {one for spec in specs for _, one in _weights(spec)}
        return cls._look_up(session, owner_id, uploads, weights, {*after})

    def is_unchanged(self, session: Session, owner_id: int) -> bool:
        """Look up the same inputs again, and return whether they are unchanged."""
        return self._look_up(session, owner_id, *self.ids)._state == self._state

    @classmethod
    def _look_up(
        cls,
        session: Session,
        owner_id: int,
        uploads: Collection[str],
        weights: Collection[str],
        after: Collection[str],
    ) -> "ReferencedInputs":
        return cls(
            readable_ones(session, owner_id, Dataset, uploads),
            _statuses(session, owner_id, {*weights, *after}),
            _trained(session, weights),
            {one.experiment_id: one.sha256 for one in _kept(session, weights)},
            (uploads, weights, after),
        )

    @property
    def _state(self) -> tuple[object, ...]:
        """Everything that decides whether the specs may run. Unfinished experiments are alike: one
        that is paused or starts does not change this."""
        ended = {
            one: None if status in UNFINISHED else status for one, status in self.statuses.items()
        }
        return {*self.datasets}, ended, self.weights

    def dataset(self, dataset_id: str) -> Dataset | None:
        """Return an upload to read its contents. Those of the latest few stay in memory."""
        found = self.datasets.get(dataset_id)
        if found is not None and dataset_id not in self.latest:
            self.latest.append(dataset_id)
            if len(self.latest) > MAX_KNOWN:
                forget_contents(self.datasets[self.latest.popleft()])
        return found

    def digests(self, spec: ExperimentSpec) -> list[str] | None:
        """Return the digests of a spec's uploads and weights, or None if some do not exist yet."""
        upload = getattr(spec.data, "dataset", None)
        found = [] if upload is None else [self.datasets[upload].digest]
        for _, one in _weights(spec):
            if one not in self.weights or self.statuses[one] != Status.SUCCEEDED:
                return None
            found.append(self.weights[one])
        return found

    def unfinished(self, spec: ExperimentSpec, after: Iterable[str]) -> list[str]:
        """Return the experiments that a run of the spec must wait for."""
        earlier = dict.fromkeys([*after, *(one for _, one in _weights(spec))])
        return [one for one in earlier if self.statuses[one] in UNFINISHED]


def _statuses(session: Session, owner_id: int, ids: Collection[str]) -> dict[str, str]:
    """Return the status of those of these experiments that a user may read, by id."""
    if not ids:
        return {}
    query = select(Experiment.id, Experiment.status)
    query = query.where(Experiment.id.in_(ids), readable(Experiment))
    return {one.id: one.status for one in session.execute(query, reader(owner_id))}


def _trained(session: Session, ids: Collection[str]) -> Mapping[str, Trained]:
    """Return those of these experiments that train or fit a model."""
    if not ids:
        return {}
    spec = Experiment.spec
    model, data = spec["model"], spec["data"]
    trains = spec["train"].as_string().is_not(None)
    fits = model["init"].as_string() == "maximum_likelihood"
    facts = (
        model["latent_dim"].as_integer(),
        data["dim"].as_integer(),
        data["standardize"].as_string(),
    )
    read = (case((Experiment.spec_bytes <= MAX_READ_BYTES, fact)) for fact in facts)
    query = select(Experiment.id, *read).where(Experiment.id.in_(ids), trains | fits)
    return {
        one: Trained(latent_dim, dim, scaling in STANDARDIZED)
        for one, latent_dim, dim, scaling in session.execute(query)
    }


STANDARDIZED = ("true", "1", "columns")
"""Values of `data.standardize` in PostgreSQL and SQLite."""


def _kept(session: Session, experiment_ids: Collection[str]) -> Sequence[Artifact]:
    """Return the weights that these experiments have kept."""
    if not experiment_ids:
        return ()
    wanted = (Artifact.experiment_id.in_(experiment_ids), Artifact.file == WEIGHTS)
    return session.scalars(select(Artifact).where(*wanted)).all()


def _weights(spec: ExperimentSpec) -> Iterator[tuple[str, str]]:
    """Yield the experiments whose weights a spec uses, each with the part that uses them."""
    for part in ("model", "baseline"):  # a model may use no weights
        experiment_id = getattr(getattr(spec, part), "experiment", None)
        if experiment_id is not None:
            yield part, experiment_id


def reference_problems(inputs: ReferencedInputs, spec: ExperimentSpec) -> list[Problem]:
    """Return the problems of the uploads and experiments that a spec refers to."""
    problems = list(_experiment_problems(inputs, spec))
    match spec.data:
        case UploadData():
            problems += _upload_problems(inputs, spec.data)
        case PlainText() if spec.data.dataset is not None:
            problems += _text_problems(inputs, spec.data)
    return problems


def after_problems(inputs: ReferencedInputs, after: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of the experiments that another comes after: /after/i."""
    for i, one in enumerate(after):
        status = inputs.statuses.get(one)
        if status is None:
            yield Problem(f"/after/{i}", "the id of an experiment, yours or shared with the lab")
        elif status in FAILED:
            detail = f"this experiment is {status}: experiments that wait for it could not run"
            yield Problem(f"/after/{i}", detail)


FAILED = (Status.FAILED, Status.CANCELLED)


def _text_problems(inputs: ReferencedInputs, data: PlainText) -> Iterator[Problem]:
    dataset = inputs.dataset(str(data.dataset))
    if dataset is None:
        yield Problem("/data/dataset", NO_UPLOAD)
    elif dataset.dim is not None:
        yield Problem("/data/dataset", "this upload holds numbers, not text")
    elif dataset.columns is None and data.second_column is not None:
        yield Problem("/data/second_column", "this upload has no columns: leave it out")
    elif dataset.columns is not None and {*data.text_columns} - {*dataset.column_names}:
        have = listed(dataset.columns)
        for field, column in zip(("column", "second_column"), data.text_columns, strict=False):
            if column not in dataset.column_names:
                detail = f"the upload's columns of text are {have}; not {column}"
                yield Problem(f"/data/{field}", detail)
    elif data.n is not None and data.n > (count := dataset.n * len(data.text_columns)):
        yield Problem("/data/n", too_few(count))


def _upload_problems(inputs: ReferencedInputs, data: UploadData) -> Iterator[Problem]:
    try:
        shape = shape_of(inputs.dataset(data.dataset), data.array, data.columns)
    except SpecError as error:
        yield from error.problems
        return
    for name, found in zip(SIZES, shape, strict=True):
        if getattr(data, name) != found:
            detail = f"the upload's {name} is {found}, not {getattr(data, name)}"
            yield Problem(f"/data/{name}", detail)


def _experiment_problems(inputs: ReferencedInputs, spec: ExperimentSpec) -> Iterator[Problem]:
    for part, one in _weights(spec):
        status = inputs.statuses.get(one, Status.FAILED)
        if status in FAILED or one not in inputs.trained:
            detail = (
                "the id of an experiment, yours or shared with the lab, that trains or fits a "
                "model and did not fail"
            )
            yield Problem(f"/{part}/experiment", detail)
        elif status == Status.SUCCEEDED and one not in inputs.weights:
            detail = "this experiment has kept no weights: submit it again"
            yield Problem(f"/{part}/experiment", detail)
        else:
            yield from _unlike(inputs.trained[one], part, spec)


def _unlike(trained: Trained, part: str, spec: ExperimentSpec) -> Iterator[Problem]:
    """Yield the problems of a part of a spec whose model or data are unlike those of its weights.
    The run finds the others, in the files."""
    latent_dim = getattr(getattr(spec, part), "latent_dim", None)
    if None not in (latent_dim, trained.latent_dim) and latent_dim != trained.latent_dim:
        detail = f"the experiment's model has {trained.latent_dim}, not {latent_dim}"
        yield Problem(f"/{part}/latent_dim", detail)
    dim = getattr(spec.data, "dim", None)
    if None not in (dim, trained.dim) and dim != trained.dim:
        detail = f"the model in /{part}/experiment has {trained.dim} dimensions; these data {dim}"
        yield Problem("/data", detail)
    if trained.is_standardized and not getattr(spec.data, "standardize", False):
        detail = f"true or columns: the data of /{part}/experiment are standardized, and the run "
        yield Problem("/data/standardize", f"{detail}applies their shift and scale to these")


def input_files(
    session: Session, settings: Settings, spec: dict[str, Any]
) -> dict[str, dict[str, str]]:
    """Return the files of the uploads and experiments that a stored spec refers to, by id, each
    with its recorded SHA-256. Deleted ones are missing: the run reports them."""
    uploads = session.scalars(
        select(Dataset).where(Dataset.id == (spec.get("data") or {}).get("dataset"))
    )
    found = {}
    for upload in uploads:
        folder = settings.datasets(upload.id)
        found[upload.id] = _input(folder / upload.file, upload.sha256)
        if (options := options_file(upload.reading)) is not None:
            digest = hashlib.sha256(options).hexdigest()
            found[f"{upload.id}/{OPTIONS_FILE}"] = _input(folder / OPTIONS_FILE, digest)
    models = [spec.get("model") or {}, spec.get("baseline") or {}]
    named = [model["experiment"] for model in models if model.get("experiment")]
    for one in _kept(session, named):
        folder = settings.artifacts(one.experiment_id, one.attempt)
        found[one.experiment_id] = _input(folder / one.file, one.sha256)
    return found


def _input(file: Path, sha256: str) -> dict[str, str]:
    return {"file": str(file.absolute()), "sha256": sha256}

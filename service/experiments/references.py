"""Uploads and experiments that a spec refers to. They must be its owner's or shared with the owner,
and fit the spec."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, PlainText, Problem, SpecError, UploadData
from mptcore.specs.text import too_few
from mptcore.specs.vectors import OPTIONS_FILE
from service.datasets.files import options_file
from service.datasets.models import Dataset
from service.datasets.sizes import NO_UPLOAD, SIZES, Uploads, listed, shape_of
from service.db.engine import among
from service.db.visibility import readable, reader
from service.experiments.models import Artifact, Experiment
from service.settings import Settings
from service.vocabulary import UNFINISHED, Status

MAX_READ_BYTES = 20_000
"""Maximum size of a spec whose model is compared before the run. Each fact parses the whole spec,
and one with many bytes has lists of texts or columns."""
WEIGHTS = "weights.safetensors"
"""Name of the file with the weights that an experiment has trained or fitted."""


class Trained(NamedTuple):
    """Facts on the model that an experiment trains or fits."""

    latent_dim: int | None
    """None for a model without, and where the spec is too large to be read."""
    dim: int | None
    """Dimensions of its data, likewise."""
    is_standardized: bool
    """True if its data are standardized."""
    weights: str | None
    """SHA-256 of the weights that it has stored, if any."""


@dataclass(frozen=True, slots=True)
class ReferencedInputs:
    """The uploads and experiments that specs refer to and their owner may read, by id."""

    uploads: Uploads
    upload_ids: Collection[str] = ()
    """Ids of the uploads, also of those that were not found."""
    statuses: Mapping[str, str] = field(default_factory=dict)
    """Status of each experiment. Nothing else is read: a request may name 20,000, each with a large
    spec."""
    trained: Mapping[str, Trained] = field(default_factory=dict)
    """The models of those experiments whose weights are used and that train or fit one."""

    @classmethod
    def of(
        cls,
        session: Session,
        uploads: Uploads,
        specs: Collection[ExperimentSpec],
        after: Iterable[str] = (),
    ) -> "ReferencedInputs":
        """Look up the inputs of specs, and the experiments that they come after."""
        upload_ids = {id for spec in specs if (id := getattr(spec.data, "dataset", None))}
        uploads.load(upload_ids)
        sources = {id for spec in specs for _, id in _sources(spec)}
        experiments = {*sources, *after}
        if not experiments:
            return cls(uploads, upload_ids)
        query = select(Experiment.id, Experiment.status)
        query = query.where(among(Experiment.id, experiments), readable(Experiment))
        statuses = {row.id: row.status for row in session.execute(query, reader(uploads.reader_id))}
        trained = {}
        if sources:
            rows = session.execute(_TRAINED.where(among(Experiment.id, sources)))
            for id, latent_dim, dim, scaling, weights in rows:
                trained[id] = Trained(latent_dim, dim, scaling in STANDARDIZED, weights)
        return cls(uploads, upload_ids, statuses, trained)

    def digests(self, spec: ExperimentSpec) -> list[str] | None:
        """Return the digests of a spec's uploads and weights, or None if some do not exist yet."""
        upload = self.uploads.find(getattr(spec.data, "dataset", None))
        digests = [] if upload is None else [upload.digest]
        for _, id in _sources(spec):
            weights = self.trained[id].weights
            if weights is None or self.statuses[id] != Status.SUCCEEDED:
                return None
            digests.append(weights)
        return digests

    def unfinished(self, spec: ExperimentSpec, after: Iterable[str]) -> list[str]:
        """Return the experiments that a run of the spec must wait for."""
        earlier = dict.fromkeys([*after, *(id for _, id in _sources(spec))])
        return [id for id in earlier if self.statuses[id] in UNFINISHED]


STANDARDIZED = ("true", "1", "columns")
"""Values of `data.standardize` in PostgreSQL and SQLite."""
_SPEC = Experiment.spec
_FACTS = (
    _SPEC[("model", "latent_dim")].as_integer(),
    _SPEC[("data", "dim")].as_integer(),
    _SPEC[("data", "standardize")].as_string(),
)
_TRAINED = (
    select(
        Experiment.id,
        *(case((Experiment.spec_bytes <= MAX_READ_BYTES, fact)) for fact in _FACTS),
        Artifact.sha256,
    )
    .outerjoin(Artifact, (Artifact.experiment_id == Experiment.id) & (Artifact.file == WEIGHTS))
    .where(
        _SPEC["train"].as_string().is_not(None)
        | (_SPEC[("model", "init")].as_string() == "maximum_likelihood")
    )
)
"""Experiments that train or fit a model, with facts from their specs and the digest of their
weights."""


def _sources(spec: ExperimentSpec) -> Iterator[tuple[str, str]]:
    """Yield the experiments whose weights a spec uses, each with the part that uses them."""
    for part in ("model", "baseline"):  # a model may use no weights
        experiment_id = getattr(getattr(spec, part), "experiment", None)
        if experiment_id is not None:
            yield part, experiment_id


def reference_problems(inputs: ReferencedInputs, spec: ExperimentSpec) -> Iterator[Problem]:
    """Yield the problems of the uploads and experiments that a spec refers to."""
    for part, id in _sources(spec):
        status, trained = inputs.statuses.get(id, Status.FAILED), inputs.trained.get(id)
        if status in FAILED or trained is None:
            detail = (
                "the id of an experiment, yours or shared with you, that trains or fits a "
                "model and did not fail"
            )
            yield Problem(f"/{part}/experiment", detail)
        elif status == Status.SUCCEEDED and trained.weights is None:
            detail = "this experiment has kept no weights: submit it again"
            yield Problem(f"/{part}/experiment", detail)
        else:
            yield from _unlike(trained, part, spec)
    match spec.data:
        case UploadData():
            yield from _upload_problems(inputs, spec.data)
        case PlainText() if spec.data.dataset is not None:
            yield from _text_problems(inputs, spec.data)


def after_problems(inputs: ReferencedInputs, after: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of the experiments that another comes after: /after/i."""
    for i, one in enumerate(after):
        status = inputs.statuses.get(one)
        if status is None:
            yield Problem(f"/after/{i}", "the id of an experiment, yours or shared with you")
        elif status in FAILED:
            detail = f"this experiment is {status}: experiments that wait for it could not run"
            yield Problem(f"/after/{i}", detail)


FAILED = (Status.FAILED, Status.CANCELLED)


def _text_problems(inputs: ReferencedInputs, data: PlainText) -> Iterator[Problem]:
    dataset = inputs.uploads.find(data.dataset)
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
        shape = shape_of(inputs.uploads.find(data.dataset), data.array, data.columns)
    except SpecError as error:
        yield from error.problems
        return
    for name, found in zip(SIZES, shape, strict=True):
        if getattr(data, name) != found:
            detail = f"the upload's {name} is {found}, not {getattr(data, name)}"
            yield Problem(f"/data/{name}", detail)


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
    weights = select(Artifact).where(Artifact.experiment_id.in_(named), Artifact.file == WEIGHTS)
    for one in session.scalars(weights):
        folder = settings.artifacts(one.experiment_id, one.attempt)
        found[one.experiment_id] = _input(folder / one.file, one.sha256)
    return found


def _input(file: Path, sha256: str) -> dict[str, str]:
    return {"file": str(file.absolute()), "sha256": sha256}

"""What a spec names by id must be the caller's, and fit."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, Problem, UploadData
from service.datasets import store as datasets
from service.datasets.models import Dataset
from service.experiments import store as experiments
from service.experiments.models import Status


def reference_problems(session: Session, owner_id: int, spec: ExperimentSpec) -> list[Problem]:
    """What is wrong with the uploads and experiments that a spec names."""
    problems = list(_experiment_problems(session, owner_id, spec))
    if isinstance(spec.data, UploadData):
        problems += _upload_problems(session, owner_id, spec.data)
    return problems


def _upload_problems(session: Session, owner_id: int, data: UploadData) -> Iterator[Problem]:
    dataset = datasets.find(session, owner_id, data.dataset)
    if dataset is None:
        detail = "you have no data set of this id; POST /v1/datasets makes one"
        yield Problem("/data/dataset", detail)
        return
    shape = _shape(dataset, data)
    if shape is None:
        have = ", ".join(dataset.arrays or dataset.columns or ()) or "none"
        pointer = "/data/columns" if data.columns else "/data/array"
        yield Problem(pointer, f"not in the upload, which has {have}")
        return
    for name, found in zip(("n", "dim"), shape, strict=True):
        if getattr(data, name) != found:
            detail = f"the upload's {name} is {found}, not {getattr(data, name)}"
            yield Problem(f"/data/{name}", detail)


def _shape(dataset: Dataset, data: UploadData) -> tuple[int, int] | None:
    """N and D of the part of an upload that is asked for; None where it has no such part."""
    if data.columns is not None:
        known = set(dataset.columns or ())
        return (dataset.n, len(data.columns)) if known.issuperset(data.columns) else None
    if data.array is not None:
        found = (dataset.arrays or {}).get(data.array)
        return (found[0], found[1]) if found else None
    return dataset.n, dataset.dim


def _experiment_problems(
    session: Session, owner_id: int, spec: ExperimentSpec
) -> Iterator[Problem]:
    for pointer, model in (("/model", spec.model), ("/baseline", spec.baseline)):
        if model is None or model.experiment is None:
            continue
        found = experiments.find(session, owner_id, model.experiment)
        if found is None or found.status != Status.SUCCEEDED or found.spec.get("train") is None:
            detail = "the id of an experiment of yours that trained a model and succeeded"
            yield Problem(f"{pointer}/experiment", detail)

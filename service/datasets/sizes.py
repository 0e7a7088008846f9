"""Complete specs that use uploads: the id of an upload that they name, `n` and `dim`. Refuse
columns that a model cannot use."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from mptcore.specs import (
    ExperimentSpec,
    LinearGaussianExperiment,
    Problem,
    SpecError,
    UploadData,
)
from mptcore.specs.experiment import VectorExperiment
from mptcore.specs.families.linear_gaussian import constant_columns
from mptcore.specs.parsing.sentences import not_given
from mptcore.specs.vectors import missing_values
from service.accounts.permissions import readable_ones
from service.datasets.models import Dataset, forget_contents
from service.db.visibility import readable, reader

NO_UPLOAD = "you have no data set of this id; POST /v1/datasets makes one"
NO_NAME = "you have no data set of this name: `mpt datasets` lists them, `mpt upload FILE` adds one"

SIZES = ("n", "dim")
MAX_NAMED = 10
MAX_LISTED = 50
"""Maximum number of an upload's columns or arrays that a problem names."""


def is_incomplete(spec: Any) -> bool:
    """Return whether a submitted spec names an upload, or uses one without its `n` or `dim`."""
    data = spec.get("data") if isinstance(spec, dict) else None
    if not isinstance(data, dict):
        return False
    lacks_sizes = data.get("source") == "upload" and any(name not in data for name in SIZES)
    return lacks_sizes or _is_name(data.get("dataset"))


def _is_name(dataset: Any) -> bool:
    """Return whether this is a file name, which has a dot, and not an id."""
    return _is_text(dataset) and "." in dataset


MAX_KNOWN = 10
"""Uploads whose contents, which may be megabytes, are in memory at the same time."""


@dataclass(eq=False)
class Uploads:
    """The uploads that a reader may use. Each is looked up once."""

    session: Session
    reader_id: int
    _datasets: dict[str, Dataset | None] = field(default_factory=dict)
    _with_contents: deque[Dataset] = field(default_factory=deque)
    _ids: dict[str, list[str]] = field(default_factory=dict)

    def load(self, ids: Iterable[str]) -> None:
        """Look up uploads, without their contents."""
        if missing := [id for id in ids if id not in self._datasets]:
            found = readable_ones(self.session, self.reader_id, Dataset, missing)
            self._datasets.update({id: found.get(id) for id in missing})

    def find(self, dataset_id: Any) -> Dataset | None:
        """Return an upload. The contents of the latest few stay in memory."""
        if not isinstance(dataset_id, str):
            return None
        self.load([dataset_id])
        dataset = self._datasets[dataset_id]
        if dataset is not None and dataset not in self._with_contents:
            self._with_contents.append(dataset)
            if len(self._with_contents) > MAX_KNOWN:
                forget_contents(self._with_contents.popleft())
        return dataset

    def completed(self, spec: Any) -> Any:
        """Return a submitted spec with the id of its upload and the missing sizes. Raises SpecError
        if its upload has none."""
        if not is_incomplete(spec):
            return spec
        data = spec["data"]
        if _is_name(data.get("dataset")):
            data = {**data, "dataset": self._id_of(data["dataset"])}
        if data.get("source") != "upload":
            return {**spec, "data": data}
        array, columns = data.get("array"), data.get("columns")
        if "dataset" not in data:
            raise SpecError([Problem("/data/dataset", "this field is required")])
        if not _is_text(data["dataset"]):
            detail = f"the id or name of an upload, in quotes{not_given(data['dataset'])}"
            raise SpecError([Problem("/data/dataset", detail)])
        shape = shape_of(
            self.find(data["dataset"]),
            array if isinstance(array, str) else None,
            columns if isinstance(columns, list) and all(map(_is_text, columns)) else None,
        )
        return {**spec, "data": {**dict(zip(SIZES, shape, strict=True)), **data}}

    def problems(self, spec: ExperimentSpec) -> list[Problem]:
        """Return the contradictions between a spec and the known content of its upload."""
        data = spec.data
        if not isinstance(data, UploadData) or not isinstance(spec, VectorExperiment):
            return []
        dataset = self.find(data.dataset)
        if dataset is None:
            return []
        array = data.array or next(iter(dataset.arrays or {}), "")
        named = dataset.columns is not None

        def used(columns: Mapping[str, Any]) -> list[str]:
            return [*columns] if data.columns is None else [c for c in data.columns if c in columns]

        if spec.missing_refusal is not None:
            if missing := used((dataset.missing or {}).get(array, {})):
                detail = missing_values(missing, named, spec.missing_refusal)
                return [Problem("/data/dataset", detail)]
        if not isinstance(spec, LinearGaussianExperiment) or data.binarize == "stochastic":
            return []
        if spec.estimates_each_noise and (constant := used(dataset.constant_names.get(array, {}))):
            return [Problem("/data/dataset", constant_columns(constant, named))]
        return []

    def _id_of(self, name: str) -> str:
        """Return the id of the only upload of this name; the reader's own go first. Raises
        SpecError."""
        if name not in self._ids:
            query = select(Dataset.id, Dataset.owner_id).where(readable(Dataset))
            own_first = (Dataset.owner_id != self.reader_id, Dataset.id.desc())
            query = query.where(Dataset.name == name).order_by(*own_first).limit(MAX_NAMED)
            found = self.session.execute(query, reader(self.reader_id)).all()
            own = [one.id for one in found if one.owner_id == self.reader_id]
            self._ids[name] = own or [one.id for one in found]
        ids = self._ids[name]
        if len(ids) == 1:
            return ids[0]
        told = NO_NAME
        if ids:
            told = (
                f"several data sets have this name: give one's id, newest first: {', '.join(ids)}"
            )
        raise SpecError([Problem("/data/dataset", told)])


def shape_of(
    dataset: Dataset | None, array: str | None, columns: Sequence[str] | None
) -> tuple[int, int]:
    """Return N and D of the requested part of an upload. Raises SpecError if that part does not
    exist."""
    if dataset is None:
        raise SpecError([Problem("/data/dataset", NO_UPLOAD)])
    if dataset.dim is None:
        detail = "this upload holds text: use the source text"
        raise SpecError([Problem("/data/dataset", detail)])
    if columns is None and array is None:
        if len(dataset.arrays or {}) > 1:
            detail = f"give one of the file's arrays: {_arrays(dataset)}"
            raise SpecError([Problem("/data/array", detail)])
        return dataset.n, dataset.dim
    if columns is not None and dataset.column_names.issuperset(columns):
        return dataset.n, len(columns)
    if columns is None and array in (dataset.arrays or {}):
        n, dim = (dataset.arrays or {})[array]
        return n, dim
    have = _arrays(dataset) or listed(dataset.columns or ()) or "none"
    pointer = "/data/columns" if columns else "/data/array"
    wanted = columns or ([] if array is None else [array])
    missing = [name for name in wanted if name not in dataset.column_names]
    detail = f"{listed(missing)}: not in the upload, which has {have}"
    left_out = (dataset.reading or {}).get("left_out", {})
    reasons = [f"{name} was left out: {left_out[name]}" for name in wanted if name in left_out]
    raise SpecError([Problem(pointer, "; ".join([detail, *reasons[:MAX_NAMED]]))])


def summary(dataset: Dataset) -> str:
    """Return what was read of an upload: rows, columns, the header, what was left out."""
    reading = dataset.reading or {}
    if dataset.dim is None:
        columns = f"; columns of text: {listed(dataset.columns)}" if dataset.columns else ""
        numbers = "; for numbers give --index or --drop-non-numeric" * (dataset.format == "parquet")
        return f"{dataset.n} texts{columns}{numbers}"
    if len(dataset.arrays or {}) > 1:
        parts = [f"arrays {_arrays(dataset)}"]
    else:
        array = "".join(f"array {name}: " for name in dataset.arrays or ())
        parts = [f"{array}{dataset.n} rows × {dataset.dim} columns"]
    if (header := reading.get("header")) is not None:
        parts.append("header: first line" if header else "header: none, the first line is data")
    if ids := reading.get("ids"):
        parts.append(f"ids: {listed(ids)}")
    if left_out := reading.get("left_out"):
        parts.append(f"left out: {listed([*left_out])}")
    if cells := sum(sum(counts.values()) for counts in (dataset.missing or {}).values()):
        parts.append(f"{cells} missing cell{'s' if cells > 1 else ''}")
    return "; ".join(parts)


def _arrays(dataset: Dataset) -> str:
    return listed([f"{name} ({n} × {dim})" for name, (n, dim) in (dataset.arrays or {}).items()])


def listed(names: Sequence[str]) -> str:
    """Return the first names: all may be a megabyte, and a request may have a hundred problems."""
    return ", ".join([*names[:MAX_LISTED], *(["…"] if len(names) > MAX_LISTED else [])])


def _is_text(value: Any) -> bool:
    return isinstance(value, str)

"""Facts on the data in a weights file: their shift and scale, and which observations of an upload
were held out."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from mptcore.data.dataset import Dataset, Scaling
from mptcore.protocol.records import RunError
from mptcore.runtime.tensor_files import load_weights
from mptcore.specs.data.arrays import DataSource, MeasuredData, UploadData

CENTER, SCALE, HELDOUT_ROWS = "data/center", "data/scale", "data/heldout_rows"
"""Names of the tensors: float64 (D,) or (1,), and int64 (H,), counted from 0."""


def kept_of(data: Dataset, spec: DataSource) -> Mapping[str, Tensor]:
    """Return the tensors of the data that are saved beside a model's own."""
    found: dict[str, Tensor] = {}
    if data.scaling is not None:
        found |= {CENTER: data.scaling.center, SCALE: data.scaling.scale}
    if data.heldout_rows is not None and isinstance(spec, UploadData):
        found[HELDOUT_ROWS] = data.heldout_rows
    return found


def kept_scaling(
    family: str, experiments: Iterable[str | None], spec: DataSource
) -> Scaling | None:
    """Return the shift and scale of the data that the first of these experiments, if any, trained
    or fitted a model to. Raises RunError if only its data were standardized."""
    for experiment in experiments:
        tensors = {} if experiment is None else load_weights(family, experiment)[0]
        if SCALE not in tensors:
            continue
        if not (isinstance(spec, MeasuredData) and spec.standardize):
            detail = "has a model of standardized data: set data.standardize as there"
            raise RunError("invalid", f"experiment {experiment} {detail}")
        return Scaling(tensors[CENTER], tensors[SCALE])
    return None

"""The spec: pydantic and the standard library alone, so that service and client may import it."""

from mptcore.specs.base import Problem, Spec, SpecError
from mptcore.specs.data import (
    DataSource,
    DigitsData,
    FashionMnistData,
    MnistData,
    PpcaData,
    UploadData,
)
from mptcore.specs.experiment import Compute, Evaluate, ExperimentSpec, Limits
from mptcore.specs.json_text import parse_json
from mptcore.specs.masks import (
    AllSizes,
    FixedSize,
    ListedSizes,
    Masks,
    MaskSchedule,
    Ramp,
    Rates,
    TrainSchedule,
    UniformSize,
)
from mptcore.specs.models import FactorAnalysisModel, Model, PpcaModel
from mptcore.specs.problems import parse_spec, problems_of, validate_spec
from mptcore.specs.train import Train

__all__ = [
    "AllSizes",
    "Compute",
    "DataSource",
    "DigitsData",
    "Evaluate",
    "ExperimentSpec",
    "FactorAnalysisModel",
    "FashionMnistData",
    "FixedSize",
    "Limits",
    "ListedSizes",
    "MaskSchedule",
    "Masks",
    "MnistData",
    "Model",
    "PpcaData",
    "PpcaModel",
    "Problem",
    "Ramp",
    "Rates",
    "Spec",
    "SpecError",
    "Train",
    "TrainSchedule",
    "UniformSize",
    "UploadData",
    "parse_json",
    "parse_spec",
    "problems_of",
    "validate_spec",
]

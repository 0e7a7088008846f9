"""The spec: pydantic and the standard library alone, so that service and client may import it."""

from mptcore.specs.base import Problem, Spec, SpecError
from mptcore.specs.compute import Compute, Limits, Machine
from mptcore.specs.data import (
    DataSource,
    DigitsData,
    FashionMnistData,
    MnistData,
    PpcaData,
    UploadData,
)
from mptcore.specs.experiment import EXPERIMENT, ExperimentSpec
from mptcore.specs.json_text import parse_json
from mptcore.specs.language import (
    Architecture,
    FixedRate,
    MaskedLmModel,
    RateChoice,
    RateMasks,
    RateRamp,
    TextCompute,
    TextEvaluate,
    TextExperiment,
    TextTrain,
    UniformRate,
)
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
from mptcore.specs.text import GlueText, PlainText, TextSource
from mptcore.specs.train import Train
from mptcore.specs.vectors import Evaluate, VectorExperiment

__all__ = [
    "EXPERIMENT",
    "AllSizes",
    "Architecture",
    "Compute",
    "DataSource",
    "DigitsData",
    "Evaluate",
    "ExperimentSpec",
    "FactorAnalysisModel",
    "FashionMnistData",
    "FixedRate",
    "FixedSize",
    "GlueText",
    "Limits",
    "ListedSizes",
    "Machine",
    "MaskSchedule",
    "MaskedLmModel",
    "Masks",
    "MnistData",
    "Model",
    "PlainText",
    "PpcaData",
    "PpcaModel",
    "Problem",
    "Ramp",
    "RateChoice",
    "RateMasks",
    "RateRamp",
    "Rates",
    "Spec",
    "SpecError",
    "TextCompute",
    "TextEvaluate",
    "TextExperiment",
    "TextSource",
    "TextTrain",
    "Train",
    "TrainSchedule",
    "UniformRate",
    "UniformSize",
    "UploadData",
    "VectorExperiment",
    "parse_json",
    "parse_spec",
    "problems_of",
    "validate_spec",
]

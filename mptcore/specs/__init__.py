"""Experiment specs. Only pydantic and the standard library, so that service and client may import
them."""

from mptcore.specs.base import MAX_PROBLEMS, Problem, Spec, SpecError
from mptcore.specs.compute import Compute, Limits, Machine
from mptcore.specs.data.arrays import (
    DataSource,
    DigitsData,
    FashionMnistData,
    MeasuredData,
    MnistData,
    PpcaData,
    UploadData,
)
from mptcore.specs.data.text import GlueText, PlainText, TextSource
from mptcore.specs.evaluate import MaskEvaluation
from mptcore.specs.families.linear_gaussian.experiment import Evaluate, VectorExperiment
from mptcore.specs.families.linear_gaussian.models import (
    FactorAnalysisModel,
    LinearGaussianSpec,
    PpcaModel,
)
from mptcore.specs.families.masked_lm import (
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
from mptcore.specs.families.vae.experiment import Ais, Iwae, LatentExperiment, LatentTrain
from mptcore.specs.families.vae.models import (
    Bernoulli,
    Convolutional,
    Dense,
    GaussHermite,
    Gaussian,
    Grid,
    Importance,
    LinearVaeModel,
    Recursive,
    UniformGrid,
    VaeModel,
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
from mptcore.specs.parsing.json_text import parse_json
from mptcore.specs.parsing.problems import parse_spec, spec_error, validate_spec
from mptcore.specs.stored import stored_spec
from mptcore.specs.train import Train
from mptcore.specs.union import ByFamily, ExperimentSpec

__all__ = [
    "MAX_PROBLEMS",
    "Ais",
    "AllSizes",
    "Architecture",
    "Bernoulli",
    "ByFamily",
    "Compute",
    "Convolutional",
    "DataSource",
    "Dense",
    "DigitsData",
    "Evaluate",
    "ExperimentSpec",
    "FactorAnalysisModel",
    "FashionMnistData",
    "FixedRate",
    "FixedSize",
    "GaussHermite",
    "Gaussian",
    "GlueText",
    "Grid",
    "Importance",
    "Iwae",
    "LatentExperiment",
    "LatentTrain",
    "Limits",
    "LinearGaussianSpec",
    "LinearVaeModel",
    "ListedSizes",
    "Machine",
    "MaskEvaluation",
    "MaskSchedule",
    "MaskedLmModel",
    "Masks",
    "MeasuredData",
    "MnistData",
    "PlainText",
    "PpcaData",
    "PpcaModel",
    "Problem",
    "Ramp",
    "RateChoice",
    "RateMasks",
    "RateRamp",
    "Rates",
    "Recursive",
    "Spec",
    "SpecError",
    "TextCompute",
    "TextEvaluate",
    "TextExperiment",
    "TextSource",
    "TextTrain",
    "Train",
    "TrainSchedule",
    "UniformGrid",
    "UniformRate",
    "UniformSize",
    "UploadData",
    "VaeModel",
    "VectorExperiment",
    "parse_json",
    "parse_spec",
    "spec_error",
    "stored_spec",
    "validate_spec",
]

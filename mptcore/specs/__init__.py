"""Experiment specs. Only pydantic and the standard library, so that service and client may import
them."""

from mptcore.specs.base import MAX_PROBLEMS, Problem, Spec, SpecError
from mptcore.specs.compute import Limits
from mptcore.specs.evaluate import MaskEvaluation
from mptcore.specs.experiment import OutsideExperiment
from mptcore.specs.families.linear_gaussian import (
    FactorAnalysisModel,
    LinearGaussianExperiment,
    LinearGaussianSpec,
    PpcaModel,
)
from mptcore.specs.families.masked_lm import (
    FixedRate,
    MaskedLmEvaluate,
    MaskedLmExperiment,
    MaskedLmModel,
    MaskedLmTrain,
    RateChoice,
    RateMasks,
    RateRamp,
    UniformRate,
)
from mptcore.specs.families.vae.experiment import Ais, Iwae, VaeExperiment, VaeTrain
from mptcore.specs.families.vae.models import (
    Bernoulli,
    Convolutional,
    Dense,
    GaussHermite,
    Gaussian,
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
    Ramp,
    UniformSize,
)
from mptcore.specs.parsing.json_text import parse_json
from mptcore.specs.parsing.problems import parse_spec, spec_error, validate_spec
from mptcore.specs.stored import stored_spec, stored_spec_if_known
from mptcore.specs.text import GlueText, PlainText, TextSource
from mptcore.specs.text_scores import OF_MUTATIONS, TextScore, TextScores
from mptcore.specs.train import Train
from mptcore.specs.union import ExperimentSpec, known_families, missing_family
from mptcore.specs.vectors import (
    DataSource,
    DigitsData,
    FashionMnistData,
    MeasuredData,
    MnistData,
    PpcaData,
    UploadData,
)

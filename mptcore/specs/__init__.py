"""The spec: pydantic and the standard library alone, so that service and client may import it."""

from mptcore.specs.base import Problem, Spec, SpecError
from mptcore.specs.data import DataSource, DigitsData, PpcaData
from mptcore.specs.experiment import Compute, Evaluate, ExperimentSpec, Limits
from mptcore.specs.json_text import parse_json
from mptcore.specs.masks import AllSizes, FixedSize, ListedSizes, Masks, MaskSchedule
from mptcore.specs.models import Model, PpcaModel
from mptcore.specs.problems import parse_spec, problems_of

__all__ = [
    "AllSizes",
    "Compute",
    "DataSource",
    "DigitsData",
    "Evaluate",
    "ExperimentSpec",
    "FixedSize",
    "Limits",
    "ListedSizes",
    "MaskSchedule",
    "Masks",
    "Model",
    "PpcaData",
    "PpcaModel",
    "Problem",
    "Spec",
    "SpecError",
    "parse_json",
    "parse_spec",
    "problems_of",
]

"""The experiments of the families of this project."""

from mptcore.specs.families.linear_gaussian import LinearGaussianExperiment
from mptcore.specs.families.masked_lm import MaskedLmExperiment
from mptcore.specs.families.vae.experiment import VaeExperiment

BuiltIn = LinearGaussianExperiment | VaeExperiment | MaskedLmExperiment
"""Register the experiment of a new family of this project here. mypy then reports that
mptcore/run.py lacks its implementation."""

"""Python client of the service, built on httpx. Nothing here imports torch."""

from mptlab.client import Client
from mptlab.curves import Curves
from mptlab.errors import NoAnswer, NotSucceeded, Refused
from mptlab.experiments import Experiment
from mptlab.sweeps import Sweep
from mptlab.texts import single_mutations

__all__ = [
    "Client",
    "Curves",
    "Experiment",
    "NoAnswer",
    "NotSucceeded",
    "Refused",
    "Sweep",
    "__version__",
    "single_mutations",
]

__version__ = "0.2.0"
"""Version of the whole repository; pyproject.toml reads it here."""

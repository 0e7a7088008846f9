"""The Python client of the service, on httpx. Nothing here imports torch."""

from mptlab.api import Client, Refused

__all__ = ["Client", "Refused", "__version__"]

__version__ = "0.2.0"
"""Of the whole repository: both pyproject.toml read it here."""

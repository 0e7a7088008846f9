"""The Python client of the service, on httpx. Nothing here imports torch."""

from mptlab.api import Client, Refused

__all__ = ["Client", "Refused"]

"""The Python client of the service, on httpx. Nothing here imports torch."""

from client.api import Client, Refused

__all__ = ["Client", "Refused"]

"""Streams of random numbers."""

import hashlib

import torch


def stream(seed: int, purpose: str) -> torch.Generator:
    """A stream of its own for a purpose, so that no other draw moves it."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))

"""Generators of random numbers."""

import hashlib

import torch


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """An independent generator, seeded by SHA-256 of seed and purpose."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))

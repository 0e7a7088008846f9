"""Generators of random numbers."""

import hashlib

import torch
from torch import Tensor

CPU = torch.device("cpu")


def generator_for(seed: int, purpose: str, device: torch.device = CPU) -> torch.Generator:
    """An independent generator, seeded by SHA-256 of seed and purpose. It draws on the device that
    it is of, and on a GPU other numbers than on a CPU."""
    return torch.Generator(device).manual_seed(_seed_of(f"{seed}/{purpose}".encode()))


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Go on from a state; from one of another kind of device, by a seed that follows from it."""
    if len(state) == len(generator.get_state()):
        generator.set_state(state.cpu())
    else:
        generator.manual_seed(_seed_of(state.cpu().numpy().tobytes()))


def _seed_of(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:7])

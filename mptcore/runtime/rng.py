"""Random number generators."""

import hashlib

import torch
from torch import Tensor

CPU = torch.device("cpu")


def generator_for(seed: int, purpose: str, device: torch.device = CPU) -> torch.Generator:
    """Return an independent generator, seeded by the SHA-256 of seed and purpose. It draws on the
    given device; a GPU draws other numbers than a CPU."""
    return torch.Generator(device).manual_seed(_seed_of(f"{seed}/{purpose}".encode()))


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Restore a generator's state. If the state comes from another kind of device, seed the
    generator from the state instead."""
    if len(state) == len(generator.get_state()):
        generator.set_state(state.cpu())
    else:
        generator.manual_seed(_seed_of(state.cpu().numpy().tobytes()))


def _seed_of(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:7])

"""Random number generators, and draws in the precision and on the device of a tensor."""

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


def draw_normal(
    shape: torch.Size | tuple[int, ...], like: Tensor, generator: torch.Generator
) -> Tensor:
    """Draw standard normal numbers in the precision and on the device of `like`."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def draw_uniform(
    shape: torch.Size | tuple[int, ...], like: Tensor, generator: torch.Generator
) -> Tensor:
    """Draw numbers uniform in [0, 1) in the precision and on the device of `like`."""
    return torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)


def _seed_of(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:7])

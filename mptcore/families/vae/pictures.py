"""PNGs of a VAE's reconstructions of masked images and of its samples."""

import io
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from mptcore.families.vae.trainer import TrainingStart
from mptcore.protocol.records import Artifact
from mptcore.runtime.artifacts import keep
from mptcore.runtime.rng import generator_for

SHOWN = 10
"""Number of images of each kind."""
MASKED = 1 / 2
"""Share of pixels that are masked."""
GREY = 0.5
SCALE = 3


def pictures(start: TrainingStart, folder: Path) -> Iterator[Artifact]:
    """Write two PNGs. "reconstructions": images, the same with half of the pixels masked, and the
    expected masked pixels given the rest. "samples": expected images given z from the prior. Write
    nothing for data that are not square images."""
    dim = start.x.shape[1]
    if math.isqrt(dim) ** 2 != dim:
        return
    generator = generator_for(start.seed, "pictures", start.x.device)
    x = start.held_or_seen[:SHOWN]
    low, high = start.x.min(), start.x.max()
    mask = torch.rand(dim, generator=generator, device=x.device) < MASKED
    expected = start.vae.reconstruction(x, mask, generator)
    hidden = torch.where(mask, low + GREY * (high - low), x)
    rows = torch.stack([x, hidden, expected])  # (3, SHOWN, D)
    yield _written(rows, low, high, folder, f"reconstructions-{start.objective}.png")
    with torch.no_grad():
        shape = (5 * SHOWN, start.vae.latent_dim)
        z = torch.randn(shape, generator=generator, device=x.device).to(x)
        samples = start.vae.likelihood.mean(start.vae.decoder(z)).view(5, SHOWN, dim)
    yield _written(samples, low, high, folder, f"samples-{start.objective}.png")


def _written(rows: Tensor, low: Tensor, high: Tensor, folder: Path, name: str) -> Artifact:
    """Write rows of images (R, C, D) as one PNG."""
    side = math.isqrt(rows.shape[-1])
    shade = ((rows - low) / (high - low).clamp(min=1e-12)).clamp(0, 1) * 255
    images = shade.view(*rows.shape[:2], side, side)  # (R, C, side, side)
    tiles = images.transpose(1, 2).flatten(0, 1).flatten(1)  # (R · side, C · side)
    image = Image.fromarray(tiles.round().to("cpu", torch.uint8).numpy())
    out = io.BytesIO()
    large = (SCALE * image.width, SCALE * image.height)
    image.resize(large, Image.Resampling.NEAREST).save(out, "PNG")
    content = out.getvalue()
    return keep(folder, name, "image/png", lambda: [content])

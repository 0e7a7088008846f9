"""PNGs of what a VAE makes: reconstructions of masked images, and samples."""

import hashlib
import io
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from mptcore.families.vae.grid_vae import GridVae
from mptcore.families.vae.trainer import Unit
from mptcore.protocol.records import Artifact
from mptcore.runtime.rng import stream
from mptcore.runtime.tensor_files import write_durably

SHOWN = 10
"""Images of each kind."""
MASKED = 1 / 2
"""The share of pixels that is masked."""
GREY = 0.5
SCALE = 3


def pictures(unit: Unit, folder: Path) -> Iterator[Artifact]:
    """reconstructions: images, the same with half of the pixels masked, and what is expected under
    the mask given the rest. samples: what is expected given z from the prior. None for data that
    are not square images."""
    side = math.isqrt(unit.x.shape[1])
    if side * side != unit.x.shape[1]:
        return
    draws = stream(unit.seed, "pictures")
    x = (unit.x if unit.heldout is None else unit.heldout)[:SHOWN]
    low, high = unit.x.min(), unit.x.max()
    masked = (torch.rand(x.shape[1], generator=draws) < MASKED).to(x.device)
    found = unit.network.reconstruction(x, masked, draws)
    hidden = torch.where(masked, low + GREY * (high - low), x)
    rows = torch.stack([x, hidden, found])
    yield _written(rows, low, high, folder, f"reconstructions-{unit.objective}.png")
    with torch.no_grad():
        latent_dim = (
            unit.network.z.shape[1]
            if isinstance(unit.network, GridVae)
            else unit.network.latent_dim
        )
        z = torch.randn(5 * SHOWN, latent_dim, generator=draws).to(x)
        samples = unit.network.outputs.mean(unit.network.decoder(z)).view(5, SHOWN, -1)
    yield _written(samples, low, high, folder, f"samples-{unit.objective}.png")


def _written(rows: Tensor, low: Tensor, high: Tensor, folder: Path, name: str) -> Artifact:
    """Rows of images (R, C, D) as one PNG."""
    side = math.isqrt(rows.shape[-1])
    shade = ((rows - low) / (high - low).clamp(min=1e-12)).clamp(0, 1) * 255
    tiles = shade.view(*rows.shape[:2], side, side).transpose(1, 2).flatten(0, 1).flatten(1)
    image = Image.fromarray(tiles.round().to("cpu", torch.uint8).numpy())
    out = io.BytesIO()
    large = (SCALE * image.width, SCALE * image.height)
    image.resize(large, Image.Resampling.NEAREST).save(out, "PNG")
    content = out.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / name, content)
    return Artifact(name, "image/png", hashlib.sha256(content).hexdigest())

"""Forward-mode derivatives of decoders, layer by layer. A layer needs K products; reverse mode
would need one pass for each of D outputs."""

import torch
from torch import Tensor, nn

from mptcore.families.vae.networks import ACTIVATIONS, Biased, Decoder, Leading

ELEMENTWISE = tuple(ACTIVATIONS.values())


def linearised(decoder: Decoder, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs (n, D) for z (n, K), and their derivatives (n, K, D)."""
    values, slopes = linearised_body(decoder, z)
    outputs, slopes = _through(decoder.last, values, slopes.flatten(0, 1))
    return outputs, slopes.view(*z.shape, -1)


def linearised_body(decoder: Decoder, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the last layer of a decoder gets for z (n, K), (n, H), and its derivatives (n, K,
    H), for bodies whose outputs are vectors."""
    n, latent_dim = z.shape
    identity = torch.eye(latent_dim, dtype=z.dtype, device=z.device)
    values, slopes = _through(decoder.body, z, identity.repeat(n, 1))
    return values, slopes.view(n, latent_dim, -1)


def _through(module: nn.Module, values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a module to values (n, ...) and to their slopes (n · K, ...)."""
    match module:
        case nn.Sequential():
            for layer in module:
                values, slopes = _through(layer, values, slopes)
            return values, slopes
        case Leading():
            return _through(module.module, values, slopes)
        case Biased():
            values, slopes = _through(module.module, values, slopes)
            return values + module.bias, slopes
        case _ if isinstance(module, ELEMENTWISE):
            outputs, derivative = _elementwise(module, values)
            each = slopes.view(len(values), -1, *values.shape[1:]) * derivative[:, None]
            return outputs, each.flatten(0, 1)
        case _:  # an affine one
            return module(values), module(slopes) - module(torch.zeros_like(slopes[:1]))


def _elementwise(module: nn.Module, values: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        values = values.detach().requires_grad_()
        outputs = module(values)
        (derivative,) = torch.autograd.grad(outputs.sum(), values)
    return outputs.detach(), derivative

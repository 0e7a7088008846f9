"""Encoders and decoders, and the forward derivatives of decoders."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from mptcore.specs import Convolutional, Dense

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
ELEMENTWISE = tuple(ACTIVATIONS.values())


class Encoder(nn.Module):
    """Mean and log variance of q(z | x), a normal distribution with independent dimensions."""

    def __init__(self, body: nn.Module, width: int, latent_dim: int):
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, 2 * latent_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (..., D) to (..., K) twice
        mean, log_variance = self.head(self.body(x)).chunk(2, -1)
        return mean, log_variance.clamp(-20, 20)


class Decoder(nn.Module):
    """Decoder outputs for all dimensions, by a linear last layer with one bias for each
    dimension."""

    def __init__(self, body: nn.Module, last: "nn.Linear | Biased"):
        super().__init__()
        self.body = body
        self.last = last

    def forward(self, z: Tensor, columns: Tensor | None = None) -> Tensor:
        """Map (..., K) to (..., D), or only to the given columns."""
        hidden = self.body(z)
        if columns is None or not isinstance(self.last, nn.Linear):
            outputs: Tensor = self.last(hidden)
            return outputs if columns is None else outputs[..., columns]
        return nn.functional.linear(hidden, self.last.weight[columns], self.last.bias[columns])


def linear(dim: int, latent_dim: int) -> tuple[Encoder, Decoder]:
    """Return an encoder and a decoder without hidden layers."""
    return Encoder(nn.Identity(), dim, latent_dim), linear_decoder(dim, latent_dim)


def linear_decoder(dim: int, latent_dim: int) -> Decoder:
    return Decoder(nn.Identity(), nn.Linear(latent_dim, dim))


def dense(spec: Dense, dim: int, latent_dim: int) -> tuple[Encoder, Decoder]:
    """Return fully connected networks."""
    encoder = Encoder(_stack(spec, [dim, *spec.widths]), spec.widths[-1], latent_dim)
    widths = [latent_dim, *reversed(spec.widths)]
    return encoder, Decoder(_stack(spec, widths), nn.Linear(widths[-1], dim))


def convolutional(spec: Convolutional, dim: int, latent_dim: int) -> tuple[Encoder, Decoder]:
    """Return convolutions of stride 2 over square images, and their transpose."""
    activation = ACTIVATIONS[spec.activation]
    side, channels = math.isqrt(dim), [1, *spec.channels]
    min_side = side // 2 ** len(spec.channels)
    flat = channels[-1] * min_side**2
    down: list[nn.Module] = [Shaped((dim,), (1, side, side))]
    up: list[nn.Module] = [Shaped((flat,), (channels[-1], min_side, min_side))]
    for before, after in pairwise(channels):
        down += [nn.Conv2d(before, after, 4, stride=2, padding=1), activation()]
    reverse = channels[::-1]
    for i, (before, after) in enumerate(pairwise(reverse)):
        last = i == len(reverse) - 2
        up += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=not last)]
        up += [] if last else [activation()]
    down += [Shaped((channels[-1], min_side, min_side), (flat,)), nn.Linear(flat, spec.width)]
    body = nn.Sequential(nn.Linear(latent_dim, spec.width), activation())
    body += nn.Sequential(nn.Linear(spec.width, flat), activation())
    last_layers = nn.Sequential(*up, Shaped((1, side, side), (dim,)))
    encoder = Encoder(Leading(nn.Sequential(*down, activation())), spec.width, latent_dim)
    return encoder, Decoder(body, Biased(Leading(last_layers), dim))


class Shaped(nn.Module):
    """Reshape the last dimensions of a tensor."""

    def __init__(self, before: tuple[int, ...], after: tuple[int, ...]):
        super().__init__()
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[: x.ndim - len(self.before)], *self.after)


class Biased(nn.Module):
    """Add a bias for each dimension to a module's output."""

    def __init__(self, module: nn.Module, dim: int):
        super().__init__()
        self.module = module
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.module(x) + self.bias
        return outputs


class Leading(nn.Module):
    """Apply a module that takes one leading dimension to any number of leading dimensions."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.module(x.flatten(0, -2))
        return outputs.view(*x.shape[:-1], -1)


def _stack(spec: Dense, widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), ACTIVATIONS[spec.activation]()]
    return nn.Sequential(*layers)


def linearised(decoder: Decoder, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs (n, D) for z (n, K), and their derivatives (n, K, D), in forward mode. A
    layer needs K products; reverse mode would need one pass for each of D outputs."""
    values, slopes = linearised_body(decoder, z)
    outputs, slopes = _through(decoder.last, values, slopes.flatten(0, 1))
    return outputs, slopes.view(*z.shape, -1)


def linearised_body(decoder: Decoder, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input of a decoder's last layer (n, H) for z (n, K), and its derivatives (n, K,
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

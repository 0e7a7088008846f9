"""Encoders and decoders, and the derivatives of decoders."""

import pytest
import torch
from torch import nn

from mptcore.families.vae import networks
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood
from mptcore.families.vae.networks import Encoder, convolutional, dense, linearised
from mptcore.families.vae.sampled import SampledVae
from mptcore.specs import Convolutional, Dense, Recursive


def kinds(module: nn.Module) -> list[str]:
    return [type(one).__name__ for one in module.modules() if not list(one.children())]


def test_a_convolutional_network_has_an_activation_after_each_layer_but_the_last() -> None:
    spec = Convolutional(layers="convolutional", channels=(3, 5), width=7, activation="tanh")
    encoder, decoder = networks.convolutional(spec, 64, 2)
    down = ["Shaped", "Conv2d", "Tanh", "Conv2d", "Tanh", "Shaped", "Linear", "Tanh"]
    assert kinds(encoder.body) == down
    assert kinds(decoder.body) == ["Linear", "Tanh", "Linear", "Tanh"]
    up = ["Shaped", "ConvTranspose2d", "Tanh", "ConvTranspose2d", "Shaped"]
    assert kinds(decoder.last) == up
    transposed = [one for one in decoder.modules() if isinstance(one, nn.ConvTranspose2d)]
    assert [one.bias is None for one in transposed] == [False, True]
    assert [one.out_channels for one in transposed] == [3, 1]
    mean, log_variance = encoder(torch.zeros(2, 3, 64))
    assert mean.shape == log_variance.shape == (2, 3, 2)
    assert decoder(torch.zeros(2, 3, 2)).shape == (2, 3, 64)


def test_a_dense_network_goes_through_its_widths_and_back() -> None:
    spec = Dense(layers="dense", widths=(7, 4), activation="gelu")
    encoder, decoder = networks.dense(spec, 6, 2)
    linear = [(one.in_features, one.out_features) for one in encoder.modules()
              if isinstance(one, nn.Linear)]  # fmt: skip
    assert linear == [(6, 7), (7, 4), (4, 4)]
    linear = [(one.in_features, one.out_features) for one in decoder.modules()
              if isinstance(one, nn.Linear)]  # fmt: skip
    assert linear == [(2, 4), (4, 7), (7, 6)]
    assert kinds(encoder.body) == ["Linear", "GELU"] * 2


def test_an_encoders_variance_is_bounded() -> None:
    encoder = Encoder(nn.Identity(), 1, 1)
    with torch.no_grad():
        encoder.head.weight.copy_(torch.tensor([[1.0], [1.0]]))
        encoder.head.bias.zero_()
    mean, log_variance = encoder(torch.tensor([[-50.0], [2.0], [50.0]]))
    assert mean.flatten().tolist() == [-50, 2, 50]
    assert log_variance.flatten().tolist() == [-20, 2, 20]


@pytest.mark.parametrize("outputs", [BernoulliLikelihood(), GaussianLikelihood(2.0)])
@pytest.mark.parametrize(
    "layers",
    [
        Dense(layers="dense", widths=(7, 5)),
        Convolutional(layers="convolutional", channels=(3, 4), width=6),
    ],
    ids=lambda layers: layers.layers,
)
def test_decoding_some_columns_equals_decoding_all(
    layers: Dense | Convolutional, outputs: BernoulliLikelihood | GaussianLikelihood
) -> None:
    if isinstance(layers, Dense):
        encoder, decoder = dense(layers, 64, 3)
    else:
        encoder, decoder = convolutional(layers, 64, 3)
    model = SampledVae(encoder, decoder, outputs, 3, Recursive(method="recursive", draws=3), 99)
    x = (torch.rand(5, 64) < 0.5).float()
    mean, log_variance = model.encoder(x)
    assert mean.shape == log_variance.shape == (5, 3)
    z = torch.randn(2, 5, 3)
    columns = torch.tensor([3, 60])
    assert torch.allclose(decoder(z)[..., columns], decoder(z, columns), atol=1e-6)
    values, slopes = linearised(decoder, z[0])
    assert torch.allclose(values, decoder(z[0]), atol=1e-6)
    for i in range(5):
        expected = torch.func.jacrev(lambda one: decoder(one[None])[0])(z[0, i])
        assert torch.allclose(slopes[i], expected.T, atol=1e-5)
    mask = torch.zeros(64, dtype=torch.bool)
    mask[::3] = True
    model.score(x, mask[None], torch.Generator()).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in encoder.parameters())
    assert all(p.grad is not None for p in decoder.parameters())

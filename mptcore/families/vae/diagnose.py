"""What tells how far a VAE can be trusted: collapse, and annealed importance sampling."""

from collections.abc import Generator, Iterator

import torch
from torch import Tensor

from mptcore.estimation.evaluate import lml_metrics
from mptcore.estimation.model import Evidence
from mptcore.families.vae.ais import Annealing
from mptcore.families.vae.evidence import Weights, by_iwae, by_weights, weighed
from mptcore.families.vae.networks import Encoder
from mptcore.families.vae.sampled_vae import DeepVae
from mptcore.families.vae.trainer import Unit
from mptcore.families.vae.variational import ACTIVE, ROWS, divergence
from mptcore.protocol.records import Labels, Log, Metric, Record
from mptcore.runtime.rng import stream
from mptcore.specs import Ais

ONE_START = "all chains of an observation start at the one z that it was drawn with"


@torch.no_grad()
def collapse(encoder: Encoder, x: Tensor, labels: Labels) -> Iterator[Record]:
    """How many latent dimensions the encoder uses, and their divergence in nats."""
    found = torch.stack([divergence(*encoder(part)).sum(0) for part in torch.split(x, ROWS)])
    each = found.sum(0) / len(x)
    active = int((each > ACTIVE).sum())
    yield Metric("kl", each.sum().item(), 0.0, labels)
    yield Metric("active_units", active, 0.0, labels)
    if active == 0:
        cure = "train longer, or with a smaller learning_rate or a higher noise_precision"
        detail = f"every latent dimension has a KL below {ACTIVE} nats, so z tells nothing of x"
        who = ", ".join(f"{name} {value}" for name, value in labels.items())
        yield Log("warning", f"collapse ({who}): {detail}; {cure}")


def annealed(
    unit: Unit, network: DeepVae, spec: Ais, samples: int
) -> Generator[Record | None, None, None]:
    """AIS on some observations, with the importance weighted bound on the same ones, and the
    bracket on simulated ones. None between steps, at rest."""
    x = (unit.x if unit.heldout is None else unit.heldout)[: spec.observations]
    draws = stream(unit.seed, "ais")
    found, _ = yield from _both_ways(network, x, None, spec, draws)
    yield from lml_metrics("lml_ais", found, unit.labels)
    bound = yield from by_iwae(network, samples, x, draws)
    yield from lml_metrics("lml_ais_iwae", bound, unit.labels)
    if spec.simulated == 0:
        return
    draws = stream(unit.seed, "simulated")
    z = torch.randn(spec.simulated, network.latent_dim, generator=draws, dtype=x.dtype).to(x)
    with torch.no_grad():
        simulated = network.outputs.sample(network.decoder(z), draws)
    below, above = yield from _both_ways(network, simulated, z, spec, draws)
    assert above is not None
    yield from lml_metrics("lml_simulated_below", below, unit.labels)
    yield Metric("lml_simulated_above", -above.value, None, unit.labels, ONE_START)


def _both_ways(
    network: DeepVae, x: Tensor, z: Tensor | None, spec: Ais, draws: torch.Generator
) -> Generator[None, None, tuple[Evidence, Evidence | None]]:
    """Forward AIS; and where z is given, that x was drawn with, reverse AIS of −log p(x)."""
    forward: list[Weights] = []
    backward: list[Weights] = []
    first = 0
    for part in network.parts(x, spec.chains):
        annealing = Annealing(network, part, spec, draws)
        yield from annealing.tuned()
        forward.append(weighed((yield from annealing.forward())))
        if z is not None:
            own = z[first : first + len(part)]
            backward.append(weighed((yield from annealing.backward(own))))
        first += len(part)
    return by_weights(forward), by_weights(backward) if backward else None

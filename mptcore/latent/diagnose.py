"""What tells how far a VAE can be trusted: collapse, and annealed importance sampling."""

from collections.abc import Generator, Iterator

import torch

from mptcore.evaluate import lml_metrics
from mptcore.latent.ais import Annealing
from mptcore.latent.deep_vae import DeepVae
from mptcore.latent.evidence import by_weights
from mptcore.latent.networks import Encoder
from mptcore.latent.trainer import Unit
from mptcore.latent.variational import ACTIVE, divergence
from mptcore.models import Evidence
from mptcore.records import Labels, Log, Metric, Record
from mptcore.specs import Ais
from mptcore.streams import stream


@torch.no_grad()
def collapse(encoder: Encoder, x: torch.Tensor, labels: Labels) -> Iterator[Record]:
    """How many latent dimensions the encoder uses, and their divergence in nats."""
    found = torch.stack([divergence(*encoder(part)).sum(0) for part in torch.split(x, 4096)])
    each = found.sum(0) / len(x)
    active = int((each > ACTIVE).sum())
    yield Metric("kl", each.sum().item(), 0.0, labels)
    yield Metric("active_units", active, 0.0, labels)
    if active == 0:
        cure = "train longer, or with a smaller learning_rate or a higher noise_precision"
        detail = f"every latent dimension has a KL below {ACTIVE} nats, so z tells nothing of x"
        yield Log("warning", f"collapse: {detail}; {cure}")


def annealed(unit: Unit, network: DeepVae, spec: Ais) -> Generator[Record | None, None, None]:
    """AIS on some observations, and the bracket on simulated ones. None between steps, at rest."""
    x = unit.x if unit.heldout is None else unit.heldout
    forward = yield from _forward(Annealing(network, x[: spec.observations], spec, _draws(unit)))
    yield from lml_metrics("lml_ais", forward, unit.labels)
    if spec.simulated == 0:
        return
    draws = stream(unit.seed, "simulated")
    z = torch.randn(spec.simulated, network.latent_dim, generator=draws, dtype=x.dtype).to(x)
    with torch.no_grad():
        simulated = network.outputs.sample(network.decoder(z), draws)
    annealing = Annealing(network, simulated, spec, draws)
    below = yield from _forward(annealing)
    backward = yield from annealing.backward(z)
    above = by_weights([backward], "ais")
    yield from lml_metrics("lml_simulated_below", below, unit.labels)
    yield Metric("lml_simulated_above", -above.value, above.std_err, unit.labels)


def _forward(annealing: Annealing) -> Generator[None, None, Evidence]:
    yield from annealing.tuned()
    weights = yield from annealing.forward()
    return by_weights([weights], "ais")


def _draws(unit: Unit) -> torch.Generator:
    return stream(unit.seed, "ais")

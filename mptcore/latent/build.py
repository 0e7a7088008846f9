"""From a spec to networks, new or with the weights of an earlier experiment."""

import torch
from torch import Tensor, nn

from mptcore.latent import networks
from mptcore.latent.deep_vae import DeepVae
from mptcore.latent.grid import nodes_of
from mptcore.latent.grid_vae import GridVae
from mptcore.latent.likelihoods import outputs_of
from mptcore.latent.networks import Decoder, Encoder
from mptcore.latent.trainer import Network
from mptcore.records import RunError
from mptcore.specs import Convolutional, Iwae, LatentExperiment, LinearVaeModel, VaeModel
from mptcore.specs.latent import Objective
from mptcore.specs.vae import AnyGrid
from mptcore.streams import stream
from mptcore.weights import load_kept


def network(spec: LinearVaeModel | VaeModel, x: Tensor, seed: int, objective: Objective) -> Network:
    """A start for data (N, D), in float32 on the CPU: the same decoder for every objective, whose
    last bias gives each dimension its mean. Raises RunError where the weights asked for do not
    fit."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, "init").initial_seed() % 2**63)
        encoder, decoder = _pair(spec, x.shape[1])
    outputs = outputs_of(spec.likelihood)
    if isinstance(decoder.last, nn.Linear):
        with torch.no_grad():
            decoder.last.bias.copy_(outputs.independent(x))
    found: Network
    if isinstance(spec.conditionals, AnyGrid):
        nodes = nodes_of(spec.conditionals, spec.latent_dim)
        found = GridVae(decoder, encoder if objective == "elbo" else None, outputs, nodes)
    else:
        found = DeepVae(encoder, decoder, outputs, spec.conditionals, spec.latent_dim)
    if spec.experiment is not None:
        _load(found, spec.experiment, seed, objective)
    return found


def for_scores(trained: Network, spec: LatentExperiment) -> Network:
    """The same network over the grid that the LML is computed by, where there is one."""
    method = spec.lml_method()
    if isinstance(trained, DeepVae) or isinstance(method, Iwae):
        return trained
    nodes = nodes_of(method, spec.model.latent_dim)
    return GridVae(trained.decoder, trained.encoder, trained.outputs, nodes).to(trained.z)


def _pair(spec: LinearVaeModel | VaeModel, dim: int) -> tuple[Encoder, Decoder]:
    if isinstance(spec, LinearVaeModel):
        return networks.linear(dim, spec.latent_dim)
    if isinstance(spec.network, Convolutional):
        return networks.convolutional(spec.network, dim, spec.latent_dim)
    return networks.dense(spec.network, dim, spec.latent_dim)


def _load(found: nn.Module, experiment: str, seed: int, objective: Objective) -> None:
    """The weights of the same seed and objective, else those of the first that were kept."""
    tensors, said = load_kept(experiment)
    if "latent" not in said:
        raise RunError("invalid", f"experiment {experiment} trained a model of another family")
    kept = [name.rsplit("/", 1)[0] for name in tensors]
    own = f"{objective}/{seed}"
    chosen = own if own in kept else f"{said['latent']}"
    weights = {
        name.removeprefix(f"{chosen}/"): value
        for name, value in tensors.items()
        if name.startswith(f"{chosen}/")
    }
    wanted = {name: value.shape for name, value in found.state_dict().items()}
    shapes = {name: value.shape for name, value in weights.items() if name in wanted}
    if shapes != wanted:
        detail = "has weights of other shapes, or no encoder: give the same model and data"
        raise RunError("invalid", f"experiment {experiment} {detail}")
    found.load_state_dict({name: weights[name] for name in wanted})

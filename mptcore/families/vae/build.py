"""From a spec to networks, new or with the weights of an earlier experiment."""

import json

import torch
from torch import Tensor, nn

from mptcore.families.vae import networks
from mptcore.families.vae.grid import nodes_of
from mptcore.families.vae.grid_vae import GridVae
from mptcore.families.vae.likelihoods import outputs_of
from mptcore.families.vae.networks import Decoder, Encoder
from mptcore.families.vae.sampled_vae import DeepVae
from mptcore.families.vae.trainer import Network
from mptcore.protocol.records import RunError
from mptcore.runtime.rng import stream
from mptcore.runtime.tensor_files import load_weights
from mptcore.specs import Convolutional, Iwae, LatentExperiment, LinearVaeModel, VaeModel
from mptcore.specs.families.vae.models import AnyGrid, Objective

FAMILY = "vae"


def network(spec: LinearVaeModel | VaeModel, x: Tensor, seed: int, objective: Objective) -> Network:
    """A start for data (N, D), where and as precise as these: the same decoder for every objective,
    whose last bias gives each dimension its mean. Raises RunError where the weights asked for do
    not fit."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, "init").initial_seed() % 2**63)
        encoder, decoder = _pair(spec, x.shape[1])
    outputs = outputs_of(spec.likelihood)
    with torch.no_grad():
        decoder.last.bias.copy_(outputs.independent(x))
    found: Network
    if isinstance(spec.conditionals, AnyGrid):
        nodes = nodes_of(spec.conditionals, spec.latent_dim)
        found = GridVae(decoder, encoder if objective == "elbo" else None, outputs, nodes)
    else:
        width = spec.numbers_per_observation(x.shape[1])
        found = DeepVae(encoder, decoder, outputs, spec.conditionals, spec.latent_dim, width)
    found = found.to(x)
    if spec.experiment is not None:
        _load(found, spec, seed, objective)
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


def weights_header(spec: LatentExperiment) -> dict[str, str]:
    """What the file of weights says of them: of which model they are, for which seeds and
    objectives."""
    assert spec.train is not None
    starts = {"seeds": spec.seeds, "objectives": spec.train.objectives}
    return {"trained": json.dumps(_kind(spec.model) | starts)}


def _kind(spec: LinearVaeModel | VaeModel) -> dict[str, object]:
    """What makes weights of the same shapes another model."""
    network = spec.network.model_dump(mode="json") if isinstance(spec, VaeModel) else None
    return {"likelihood": spec.likelihood.distribution, "network": network}


def _load(
    found: nn.Module, spec: LinearVaeModel | VaeModel, seed: int, objective: Objective
) -> None:
    """The weights that spec.experiment kept."""
    tensors, header = load_weights(FAMILY, str(spec.experiment))
    who = f"experiment {spec.experiment}"
    kept = json.loads(header["trained"])
    for name, own in _kind(spec).items():
        if kept[name] != own:
            detail = f"its model.{name} is {kept[name]}, not {own}"
            raise RunError("invalid", f"{who} has weights of another model: {detail}")
    if spec.trained_by not in (None, *kept["objectives"]):
        detail = f"was trained by {', '.join(kept['objectives'])}, not by {spec.trained_by}"
        raise RunError("invalid", f"{who} {detail}: change model.trained_by")
    trained_by = spec.trained_by or objective
    if trained_by not in kept["objectives"]:
        trained_by = kept["objectives"][0]
    chosen = f"{trained_by}/{seed if seed in kept['seeds'] else kept['seeds'][0]}/"
    weights = {n.removeprefix(chosen): v for n, v in tensors.items() if n.startswith(chosen)}
    wanted = {name: value.shape for name, value in found.state_dict().items()}
    shapes = {name: value.shape for name, value in weights.items() if name in wanted}
    if shapes != wanted:
        detail = "has weights of other shapes, or no encoder: give the same model and data"
        raise RunError("invalid", f"{who} {detail}")
    found.load_state_dict({name: weights[name] for name in wanted})

"""Build VAEs from a spec, with new weights or those of an earlier experiment."""

import json
from typing import assert_never

import torch
from torch import Tensor

from mptcore.families.vae import networks
from mptcore.families.vae.grid import GridVae
from mptcore.families.vae.likelihoods import likelihood_of
from mptcore.families.vae.networks import Decoder, Encoder
from mptcore.families.vae.sampled import SampledVae
from mptcore.families.vae.vae import Vae
from mptcore.protocol.records import RunError
from mptcore.runtime.checkpoint import under
from mptcore.runtime.rng import generator_for
from mptcore.runtime.tensor_files import load_weights
from mptcore.specs import (
    Convolutional,
    Dense,
    GaussHermite,
    Importance,
    Iwae,
    LinearVaeModel,
    Recursive,
    UniformGrid,
    VaeExperiment,
    VaeModel,
)
from mptcore.specs.families.vae.models import Objective

FAMILY = "vae"


def build_vae(spec: VaeExperiment, x: Tensor, seed: int, objective: Objective) -> Vae:
    """Build a start for data (N, D), on their device and in their precision. The decoder is the
    same for every objective, and its last bias is the mean of each dimension. Raises RunError if
    the requested weights do not fit."""
    model = spec.model
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator_for(seed, "init").initial_seed() % 2**63)
        encoder, decoder = _networks(model, x.shape[1])
    likelihood = likelihood_of(model.likelihood)
    with torch.no_grad():
        decoder.last.bias.copy_(likelihood.independent(x))
    vae: Vae
    match model.conditionals:
        case GaussHermite() | UniformGrid() as grid:
            used_encoder = encoder if objective == "elbo" else None
            vae = GridVae(used_encoder, decoder, likelihood, model.latent_dim, grid)
        case Recursive() | Importance() as method:
            width = model.numbers_per_observation(x.shape[1])
            lml = spec.lml_method()
            assert isinstance(lml, Iwae), "the spec's check refuses a grid"
            vae = SampledVae(encoder, decoder, likelihood, model.latent_dim, method, width, lml)
        case _:
            assert_never(model.conditionals)
    vae = vae.to(x)
    if model.experiment is not None:
        _load(vae, model, seed, objective)
    return vae


def for_scores(trained: Vae, spec: VaeExperiment) -> Vae:
    """Return the same VAE over the grid that is used for the LML, if there is one."""
    match spec.lml_method():
        case Iwae():
            return trained
        case grid:
            parts = (trained.encoder, trained.decoder, trained.likelihood, trained.latent_dim)
            return GridVae(*parts, grid).to(trained.decoder.last.bias)


def _networks(spec: LinearVaeModel | VaeModel, dim: int) -> tuple[Encoder, Decoder]:
    match spec:
        case LinearVaeModel():
            return networks.linear(dim, spec.latent_dim)
        case VaeModel(network=Convolutional() as layers):
            return networks.convolutional(layers, dim, spec.latent_dim)
        case VaeModel(network=Dense() as layers):
            return networks.dense(layers, dim, spec.latent_dim)
    raise AssertionError("a spec has no other networks")


def weights_header(spec: VaeExperiment) -> dict[str, str]:
    """Return the header of a weights file: the model, the seeds and the objectives."""
    assert spec.train is not None
    starts = {"seeds": spec.seeds, "objectives": spec.train.objective}
    return {"trained": json.dumps(_kind(spec.model) | starts)}


def _kind(spec: LinearVaeModel | VaeModel) -> dict[str, object]:
    """Return the parts of a spec that distinguish models with weights of the same shapes."""
    network = spec.network.model_dump(mode="json") if isinstance(spec, VaeModel) else None
    return {"likelihood": spec.likelihood.distribution, "network": network}


def _load(vae: Vae, spec: LinearVaeModel | VaeModel, seed: int, objective: Objective) -> None:
    """Load the weights that spec.experiment saved."""
    tensors, header = load_weights(FAMILY, str(spec.experiment))
    trained = json.loads(header["trained"])
    _check_kind(spec, trained)
    trained_by = spec.trained_by or objective
    if trained_by not in trained["objectives"]:
        trained_by = trained["objectives"][0]
    trained_seed = seed if seed in trained["seeds"] else trained["seeds"][0]
    weights = under(f"{trained_by}/{trained_seed}/", tensors)
    shapes = {name: value.shape for name, value in vae.state_dict().items()}
    if {name: value.shape for name, value in weights.items() if name in shapes} != shapes:
        detail = "has weights of other shapes, or no encoder: give the same model and data"
        raise RunError("invalid", f"experiment {spec.experiment} {detail}")
    vae.load_state_dict({name: weights[name] for name in shapes})


def _check_kind(spec: LinearVaeModel | VaeModel, trained: dict[str, list[str]]) -> None:
    """Raises RunError if the weights belong to another model."""
    experiment = f"experiment {spec.experiment}"
    for name, requested in _kind(spec).items():
        if trained[name] != requested:
            detail = f"its model.{name} is {trained[name]}, not {requested}"
            raise RunError("invalid", f"{experiment} has weights of another model: {detail}")
    objectives = trained["objectives"]
    if spec.trained_by not in (None, *objectives):
        detail = f"was trained by {', '.join(objectives)}, not by {spec.trained_by}"
        raise RunError("invalid", f"{experiment} {detail}: change model.trained_by")

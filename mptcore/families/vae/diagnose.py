"""Diagnostics of a VAE: collapse, and annealed importance sampling."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mptcore.estimation.estimate import Estimate, lml_metrics, metric
from mptcore.estimation.model import Evidence
from mptcore.families.vae.ais import Annealing
from mptcore.families.vae.importance import WeightSummary, summary_of, weight_evidence
from mptcore.families.vae.networks import Encoder, draw_normal
from mptcore.families.vae.sampled_vae import SampledVae
from mptcore.families.vae.trainer import TrainingStart
from mptcore.families.vae.vae import ACTIVE, ROWS, divergence
from mptcore.protocol.records import Labels, Log, Metric, Record
from mptcore.runtime.rng import generator_for
from mptcore.runtime.state import Records
from mptcore.specs import Ais

AGREE = 3
"""Number of standard errors by which two estimates of one quantity may differ."""
CURE = "raise evaluate.ais.temperatures or chains"


@torch.no_grad()
def collapse(encoder: Encoder, x: Tensor, labels: Labels) -> Iterator[Record]:
    """Yield how many latent dimensions the encoder uses, and their divergence in nats."""
    sums = torch.stack([divergence(*encoder(part)).sum(0) for part in torch.split(x, ROWS)])
    each = sums.sum(0) / len(x)  # (K,)
    active = int((each > ACTIVE).sum())
    yield Metric("kl", each.sum().item(), 0.0, labels)
    yield Metric("active_units", active, 0.0, labels)
    if active == 0:
        cure = "train longer, or with a smaller learning_rate or a higher noise_precision"
        detail = f"every latent dimension has a KL below {ACTIVE} nats, so z is independent of x"
        start = ", ".join(f"{name} {value}" for name, value in labels.items())
        yield Log("warning", f"collapse ({start}): {detail}; {cure}")


def annealed(start: TrainingStart, spec: Ais) -> Records[None]:
    """Run AIS on some observations, the importance-weighted bound on the same ones, and the bracket
    on simulated ones."""
    vae, labels = start.vae, start.labels
    assert isinstance(vae, SampledVae), "the spec's check refuses a grid"
    x = start.held_or_seen[: spec.observations]
    generator = generator_for(start.seed, "ais", start.x.device)
    forward, _ = yield from _both_ways(vae, x, None, spec, generator)
    sampled = yield from vae.evidence(x, generator)
    annealed, sampled = compared(_by_chains(forward), sampled)
    for name, evidence in (("lml_ais", annealed), ("lml_ais_iwae", sampled)):
        yield from lml_metrics(name, evidence, labels)
    if spec.simulated > 0:
        yield from _bracket(vae, start, spec, x)


def _by_chains(parts: Sequence[WeightSummary]) -> Evidence:
    """Summarise AIS weights with the error between chains. The few chains have an unreliable
    effective sample size, and a larger error would make the comparison less sensitive."""
    return weight_evidence(parts, cure=CURE, doubtful_error=0.0)


def compared(annealed: Evidence, sampled: Evidence) -> tuple[Evidence, Evidence]:
    """Return both estimates, the lower one not final if they differ by more than their errors
    explain. Everything that sampling misses, such as a mode, only lowers an estimate."""
    gap = annealed.value - sampled.value
    if abs(gap) <= AGREE * math.hypot(annealed.std_err, sampled.std_err):
        return annealed, sampled
    if gap < 0:
        return _below(annealed, "importance sampling", CURE), sampled
    return annealed, _below(sampled, "annealing", "it misses modes, and so may lml")


def _below(evidence: Evidence, other: str, cure: str) -> Evidence:
    reason = f"not final: {other} finds more, beyond {AGREE} standard errors; {cure}"
    return replace(evidence, not_final_reason=evidence.not_final_reason or reason)


def _bracket(vae: SampledVae, start: TrainingStart, spec: Ais, like: Tensor) -> Records[None]:
    """Bound the LML of simulated observations from below and from above. All backward chains of an
    observation start at the z from which it was drawn, so their spread does not measure their
    error. The spread over observations of the gap between the bounds does."""
    generator = generator_for(start.seed, "simulated", like.device)
    z = draw_normal((spec.simulated, vae.latent_dim), like, generator)
    with torch.no_grad():
        simulated = vae.likelihood.sample(vae.decoder(z), generator)
    forward, backward = yield from _both_ways(vae, simulated, z, spec, generator)
    below = torch.cat([part.log_mean for part in forward])
    above = -torch.cat([part.log_mean for part in backward])
    error = _by_chains(forward).std_err
    yield Metric("lml_simulated_below", below.mean().item(), error, start.labels)
    between = Estimate.of(above - below)
    above_all = replace(between, mean=above.mean().item())
    yield metric("lml_simulated_above", above_all, start.labels)
    yield metric("lml_simulated_gap", between, start.labels)


def _both_ways(
    vae: SampledVae, x: Tensor, z: Tensor | None, spec: Ais, generator: torch.Generator
) -> Records[tuple[list[WeightSummary], list[WeightSummary]]]:
    """Run forward AIS and, if the z from which x was drawn is given, reverse AIS of −log p(x)."""
    forward: list[WeightSummary] = []
    backward: list[WeightSummary] = []
    first = 0
    for part in vae.parts(x, spec.chains):
        proposal = vae.evidence_proposal(part, vae.iwae.samples, generator, is_final=True)
        annealing = Annealing(vae, part, spec, proposal, generator)
        yield from annealing.tune()
        forward.append(summary_of((yield from annealing.forward())))
        if z is not None:
            drawn_with = z[first : first + len(part)]
            backward.append(summary_of((yield from annealing.backward(drawn_with))))
        first += len(part)
    return forward, backward

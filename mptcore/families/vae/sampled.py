"""VAEs whose conditionals log p(x_j | x_R) are estimated by sampling, with the help of an
encoder."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.model import Evidence, Model
from mptcore.families.vae.conditionals import (
    ConditionalEstimates,
    Ratio,
    Ratios,
    assembled,
    expected_ess,
    ratio_of,
)
from mptcore.families.vae.importance import MORE_DRAWS, Sampler, WeightSummary, weight_evidence
from mptcore.families.vae.likelihoods import Likelihood
from mptcore.families.vae.networks import Decoder, Encoder
from mptcore.families.vae.proposal import Fit, Proposal, poorly_predicted, prior_starts
from mptcore.families.vae.vae import Vae, ascend, log_prior, sample_posterior
from mptcore.runtime.rng import draw_normal, generator_for
from mptcore.runtime.state import Records
from mptcore.specs import Importance, Iwae, Recursive

RANDOM_STARTS, MORE_STARTS = 3, 20
"""Number of random starts of a fit, in addition to the encoder's mean and zero, and of the further
ones for an observation that may have unknown modes. Half, rounded up, are likely draws from the
prior, the others lie around the encoder's mean."""
MAX_UNSEEN_MASS = 0.01
"""Maximum estimated share of a posterior's mass at modes that no start has found. Above it an
observation gets MORE_STARTS."""
DEFAULT_IWAE = Iwae(method="iwae")
PILOT_SHARE = 2
"""Draws of the estimate for each draw of the pilot that adapts the proposal. The pilot is not part
of the estimate, so that weights stay unbiased."""
EVIDENCE_PILOTS, MAX_PILOT_DRAWS = 2, 500
RECURSION_NOT_FINAL = (
    "not final: conditionals by recursion are not those of the model; use "
    "model.conditionals.method importance"
)


class Plan(NamedTuple):
    """Settings of a proposal: maximum number of steps from each start, draws of each pilot, whether
    it serves to predict the masked dimensions, and whether all observations get MORE_STARTS."""

    steps: int
    pilots: tuple[int, ...]
    predicts: bool = False
    is_thorough: bool = False


class SampledVae(Vae):
    """A VAE whose z is sampled. `width` is the number of activations of one observation in the
    decoder. `iwae` configures the evidence."""

    encoder: Encoder

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        likelihood: Likelihood,
        latent_dim: int,
        conditionals: Recursive | Importance,
        width: int,
        iwae: Iwae = DEFAULT_IWAE,
    ):
        super().__init__(encoder, decoder, likelihood, latent_dim)
        self.conditionals, self.iwae, self._width = conditionals, iwae, width

    @property
    def width(self) -> int:
        return self._width

    def rows(self, draws: int) -> int:
        """Return the number of observations that fit in memory. A fit computes the decoder's
        derivatives, K for each of its starts."""
        return super().rows(max(draws, MORE_STARTS * self.latent_dim))

    def score(self, x: Tensor, masks: Tensor, generator: torch.Generator) -> Tensor:
        """Return the score. With the recursive method, its gradient reaches the decoder only
        through the last decoding."""
        return torch.stack([self._step_score(x, mask, generator) for mask in masks]).mean()

    def _step_score(self, x: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """Return the score of one mask (D,) from the few draws of a training step. Its gradient is
        ∇ log Σ w p(x_j | z) − ∇ log Σ w with z and its proposal fixed: the model's parameters move
        the weights w ∝ p(z) p(x_R | z), too."""
        if isinstance(self.conditionals, Recursive):
            return self._by_recursion(x, mask, generator).mean()
        draws, steps = self.conditionals.train_draws, self.conditionals.train_steps
        proposal = self._step_proposal(x, mask, steps)
        z = proposal.draw(draws, generator)
        weight, log_probs = self._sampler(x, mask, generator).weighed(z, proposal)
        share = weight.log_softmax(0)[..., None]
        conditionals = (share + log_probs).logsumexp(0)  # (N, D)
        hidden = mask.expand_as(x)
        return ((conditionals * hidden).sum(-1) / hidden.sum(-1)).mean()

    def _step_proposal(self, x: Tensor, mask: Tensor, steps: int) -> Proposal:
        """Return a mixture of proposals about two modes: given x_R, and given all of x. The
        gradient is a difference of two means: given x_R, and given x_R and x_j. The mode of the
        latter lies between the two modes."""
        starts = [start.repeat(2, 1) for start in self._starts(x, mask)]
        hidden = torch.cat([mask.expand_as(x), torch.zeros_like(x, dtype=torch.bool)])
        fit = self._fit(x.repeat(2, 1), hidden)
        proposals = fit.proposal(fit.best_start(starts), steps)
        return proposals.of(slice(len(x))).mixed(proposals.of(slice(len(x), None)))

    @torch.no_grad()
    def conditional(
        self, x: Tensor, mask: Tensor, generator: torch.Generator
    ) -> ConditionalEstimates:
        """Return log p(x_j | x_R) for each masked j of one mask (D,), in nats. The bias of
        importance sampling is of second order in 1/draws."""
        if isinstance(self.conditionals, Recursive):
            log_probs = self._by_recursion(x, mask, generator)
            zeros = torch.zeros_like(log_probs)
            return ConditionalEstimates(log_probs, zeros, zeros[:, 0], zeros.sum())
        method, rows = self.conditionals, torch.arange(len(x), device=x.device)
        plan = Plan(method.steps, (method.draws // PILOT_SHARE,), predicts=True)
        proposal = self.proposal(x, mask, plan, generator)
        unreliable = self._sampler(x, mask, generator).refit_unreliable(proposal, method.draws)
        more = method.model_copy(update={"draws": MORE_DRAWS * method.draws})
        parts = []
        for subset, settings in ((rows[~unreliable], method), (rows[unreliable], more)):
            for part in torch.split(subset, self.rows(settings.draws)):
                if len(part) > 0:
                    given = x[part], mask, proposal.of(part), settings, generator
                    parts.append((part, self._conditional(*given)))
        return assembled(parts)

    def _conditional(
        self,
        x: Tensor,
        mask: Tensor,
        proposal: Proposal,
        method: Importance,
        generator: torch.Generator,
    ) -> ConditionalEstimates:
        pilot = method.draws // PILOT_SHARE
        z = proposal.draw(pilot + method.draws, generator)
        weights, log_probs = self._sampler(x, mask, generator).weighed(z, proposal)
        joint = weights[..., None] + log_probs[..., mask]  # (pilot + draws, N, M)

        def own_draws(pairs: Tensor) -> Ratio:
            rows, positions = pairs.T
            best = z[joint[:, rows, positions].argmax(0), rows]
            columns = mask.nonzero()[positions, 0]
            ratios = [
                self._with_own_draws(
                    x[rows[p]], mask, columns[p], best[p], proposal.of(rows[p]), method, generator
                )
                for p in torch.split(
                    torch.arange(len(rows), device=rows.device), self.rows(method.draws)
                )
            ]
            return Ratio(*(torch.cat(column) for column in zip(*ratios, strict=True)))

        expected = expected_ess(joint[:pilot], method.draws)
        return Ratios(weights[pilot:], joint[pilot:], expected).estimates(own_draws, generator)

    def _with_own_draws(
        self,
        x: Tensor,
        mask: Tensor,
        columns: Tensor,
        best: Tensor,
        proposal: Proposal,
        method: Importance,
        generator: torch.Generator,
    ) -> Ratio:
        """Estimate log p(x_j | x_R) for one j of each observation, `columns` (P,). Half of the
        draws come from the proposal given x_R, half from a proposal given x_j too, which also
        starts at the best known z (P, K). Both sums use all draws: if they used different ones, the
        sum for log p(x_R) could miss a mode that the other finds, which would overestimate the
        conditional."""
        rows = torch.arange(len(x), device=x.device)
        hidden = mask.repeat(len(x), 1)
        hidden[rows, columns] = False
        plan = Plan(method.steps, (method.draws // PILOT_SHARE,))
        given_j = self.proposal(x, hidden, plan, generator, [best])
        self._sampler(x, hidden, generator).refit_unreliable(given_j, method.draws)
        mixture = proposal.mixed(given_j)
        sampler = self._sampler(x, mask, generator)
        weights, log_probs = sampler.weighed(mixture.draw(method.draws, generator), mixture)
        return ratio_of(weights, weights + log_probs[:, rows, columns])

    def _by_recursion(self, x: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        z = self._chains(x, mask, generator)
        columns = mask.nonzero().flatten()  # (M,)
        log_probs = self.likelihood.log_prob(x[:, columns], self.decoder(z, columns))
        return log_probs.logsumexp(0) - math.log(len(z))  # (draws, N, M) to (N, M)

    @torch.no_grad()
    def _chains(self, x: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """Return z at the ends of independent chains, (draws, N, K). Each begins with a draw of the
        model. Each of its rounds fills in the masked dimensions by decoding, and encodes again
        (Rezende et al. 2014, App. F)."""
        assert isinstance(self.conditionals, Recursive)
        x = x.expand(self.conditionals.draws, *x.shape)  # (draws, N, D)
        z = draw_normal((*x.shape[:-1], self.latent_dim), x, generator)
        for _ in range(self.conditionals.rounds):
            filled = torch.where(mask, self.likelihood.sample(self.decoder(z), generator), x)
            mean, log_variance = self.encoder(filled)
            z = sample_posterior(mean, log_variance, generator)
        return z

    @torch.no_grad()
    def proposal(
        self,
        x: Tensor,
        mask: Tensor | None,
        plan: Plan,
        generator: torch.Generator,
        more_starts: Sequence[Tensor] = (),
    ) -> Proposal:
        """Fit a proposal to the observed part of each observation (N, D), also from `more_starts`
        (N, K), and adapt it to pilots. It uses nothing else, so that errors of the proposal
        cannot improve the conditionals. Badly predicted masked values only add starts."""
        zero, mean = self._starts(x, mask)
        fit = self._fit(x, mask)
        starts = self._random_starts(fit, mean, RANDOM_STARTS, generator)
        modes = fit.modes([zero, mean, *starts, *more_starts], plan.steps)
        proposal = modes.proposal()
        uncertain = (modes.unseen_mass() > MAX_UNSEEN_MASS) | plan.is_thorough
        if plan.predicts and mask is not None:
            uncertain |= poorly_predicted(fit, mask, modes.heaviest())
        rows = uncertain.nonzero()[:, 0]
        if len(rows) > 0:
            fit = fit.of(rows)
            starts = self._random_starts(fit, mean[rows], MORE_STARTS, generator)
            modes = modes.of(rows).joined(fit.modes(starts, plan.steps))
            proposal.put(rows, modes.proposal())
        sampler = self._sampler(x, mask, generator)
        for draws in plan.pilots:
            proposal = proposal.adapted(*sampler.draw(proposal, draws))
        return proposal

    def _random_starts(
        self, fit: Fit, mean: Tensor, count: int, generator: torch.Generator
    ) -> list[Tensor]:
        about_mean = count // 2
        from_prior = prior_starts(fit, self.latent_dim, count - about_mean, generator)
        return [*from_prior, *(mean + draw_normal((about_mean, *mean.shape), mean, generator))]

    def _sampler(self, x: Tensor, mask: Tensor | None, generator: torch.Generator) -> Sampler:
        return Sampler(self._fit(x, mask), self.rows(1), generator)

    def _fit(self, x: Tensor, mask: Tensor | None) -> Fit:
        observed = torch.ones_like(x) if mask is None else (~mask).to(x).expand_as(x)
        shared_mask = mask is None or mask.ndim == 1
        return Fit(self.decoder, self.likelihood, x, observed, shared_mask)

    @torch.no_grad()
    def _starts(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return zero, and the encoder's mean after zero's decoding has filled in the masked
        dimensions."""
        zero = x.new_zeros(len(x), self.latent_dim)
        if mask is not None:
            x = torch.where(mask, self.likelihood.mean(self.decoder(zero[:1])), x)
        return zero, self.encoder(x)[0]

    def log_marginal(self, x: Tensor) -> Tensor:
        raise NotImplementedError("it has no closed form: the spec lets lml through for grids only")

    def fit_encoder(self, x: Tensor, generator: torch.Generator) -> None:
        """Add the ELBO's gradient in the encoder for the current decoder."""
        decoder = list(self.decoder.parameters())
        for parameter in decoder:
            parameter.requires_grad_(False)
        rows = x, self.normal(x, generator)
        ascend(lambda *part: self.elbo(*part).mean(), rows, self.encoder)
        for parameter in decoder:
            parameter.requires_grad_(True)

    def evidence(self, x: Tensor, generator: torch.Generator) -> Records[Evidence]:
        """Return the LML by importance sampling from the fitted proposals (Burda et al. 2016, Eq.
        8), bias-corrected."""
        summaries = []
        for part in self.parts(x, self.iwae.samples):
            summaries.append(
                self.log_marginals(part, self.iwae.samples, generator, is_thorough=True)
            )
            yield None
        return weight_evidence(summaries, advice="raise evaluate.lml.samples")

    def quick_lml(self, x: Tensor, samples: int, generator: torch.Generator) -> Evidence:
        """Return the LML from fewer draws, for a run in progress."""
        parts = self.parts(x, samples)
        summaries = [self.log_marginals(part, samples, generator) for part in parts]
        return weight_evidence(summaries, advice="raise train.lml_samples")

    def log_marginals(
        self, x: Tensor, samples: int, generator: torch.Generator, *, is_thorough: bool = False
    ) -> WeightSummary:
        """Return log p(x) of each observation."""
        proposal = self.evidence_proposal(x, samples, generator, is_thorough=is_thorough)
        return self._sampler(x, None, generator).summary(proposal, samples)

    def evidence_proposal(
        self, x: Tensor, samples: int, generator: torch.Generator, *, is_thorough: bool
    ) -> Proposal:
        """Fit a proposal for log p(x). A final LML gets MORE_STARTS for every observation, because
        its weights do not show a mode that no start has found."""
        pilot = min(samples, MAX_PILOT_DRAWS) // PILOT_SHARE
        plan = Plan(self.iwae.steps, EVIDENCE_PILOTS * (pilot,), is_thorough=is_thorough)
        return self.proposal(x, None, plan, generator)

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """Return log p(x, z) for z (..., N, K)."""
        return self.likelihood.log_prob(x, self.decoder(z)).sum(-1) + log_prior(z)

    @torch.no_grad()
    def reconstruction(self, x: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean over z given the observed part; by recursion the mean of the chains' last
        decodings."""
        if isinstance(self.conditionals, Recursive):
            z = self._chains(x, mask, generator)
            share = x.new_full(z.shape[:2], 1 / len(z))
        else:
            method = self.conditionals
            plan = Plan(method.steps, (method.draws // PILOT_SHARE,))
            proposal = self.proposal(x, mask, plan, generator)
            z, log_weights = self._sampler(x, mask, generator).draw(proposal, method.draws)
            share = log_weights.softmax(0)  # (draws, N)
        expected = (share[..., None] * self.likelihood.mean(self.decoder(z))).sum(0)
        return torch.where(mask, expected, x)

    def scored_on(self, x: Tensor, seed: int, evidence: Evidence) -> Model:
        return SampledVaeModel(self, x, seed, evidence)


class SampledVaeModel(Model):
    """A VAE together with the data it scores. The draws of z for a mask depend on the seed and on
    the mask's position in the order of scoring. The same mask scored twice has different draws, so
    the spread over masks includes both sources of error."""

    is_sampled = True
    advice = "raise model.conditionals.draws"

    def __init__(self, vae: SampledVae, x: Tensor, seed: int, evidence: Evidence):
        self.vae, self.x, self.seed = vae, x, seed
        self._evidence = evidence
        self.device = x.device
        self.not_final_reason = (
            RECURSION_NOT_FINAL if isinstance(vae.conditionals, Recursive) else None
        )

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def bytes_per_mask(self) -> int:
        """Memory per mask. Masks are scored one by one; a batch is computed between two safe
        points."""
        return 2**22

    def scores(self, masks: Tensor) -> Tensor:
        return self.sampled_scores(masks, 0)[0]

    def sampled_scores(self, masks: Tensor, first: int) -> Tensor:
        numbered = enumerate(masks, first)
        return torch.stack([self._mask_scores(mask, number) for number, mask in numbered], dim=1)

    def _mask_scores(self, mask: Tensor, number: int) -> Tensor:
        """Return the score of the mask of this number in the run, its estimated bias, the share of
        doubtful terms, and the variance of the score by the draws: (4,)."""
        generator = generator_for(self.seed, f"conditionals {number}", self.device)
        parts = self.vae.parts(self.x, self.vae.conditionals.draws)
        estimates = [self.vae.conditional(x, mask, generator) for x in parts]
        shares = [len(x) / len(self.x) for x in parts]
        variances = [
            share * share * part.variance.double()
            for share, part in zip(shares, estimates, strict=True)
        ]
        means = [
            torch.cat([part.log_probs for part in estimates]).double().mean(),
            torch.cat([part.bias for part in estimates]).double().mean(),
            torch.cat([part.doubtful for part in estimates]).double().mean(),
        ]
        return torch.stack([*means, torch.stack(variances).sum()])

    def evidence(self) -> Evidence:
        return self._evidence

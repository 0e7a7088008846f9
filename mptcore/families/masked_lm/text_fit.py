"""Predict the log-probabilities of tokens from the mask size, which reduces the variance of the
cumulative score of a text (a control variate)."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import Corpus, repeated
from mptcore.families.masked_lm.masks import MaskedBatch

SIZE_POWER = 0.75
"""The chance of a mask of at most m of D tokens is (m/D)^SIZE_POWER. The mean over a few tokens
varies more than that over many, so small masks are drawn more often than with the power 1."""
TEXT_PRECISION, LEVEL_PRECISION, SLOPE_PRECISION = 0.01, 0.25, 0.5
"""Prior precisions of the coefficients of a text, and of a token's own level and slope, for log p
in nats with a residual variance of 1."""
TOKEN_PRECISIONS = torch.diag(torch.tensor([LEVEL_PRECISION, SLOPE_PRECISION], dtype=torch.float64))
MOMENTS = [[0, 1, 2, 5], [1, 2, 3, 6], [2, 3, 4, 7]]
"""Places of the normal equations of a parabola among the sums of a token: the powers 0 to 4 of the
size, and log p times the powers 0 to 2."""
SUMS = 8


@dataclass(frozen=True)
class ScoredMasks:
    """B masks of the N texts of a corpus, text by text, with the sum of log p over the tokens of
    each. A fit also needs log p of each token."""

    masks: MaskedBatch
    totals: Tensor  # (B,)
    log_probs: Tensor | None = None  # (M,)

    @classmethod
    def of_tokens(cls, masks: MaskedBatch, log_probs: Tensor) -> "ScoredMasks":
        """Build them from log p of each masked token, (M,)."""
        totals = torch.segment_reduce(log_probs, "sum", lengths=masks.counts)
        return cls(masks, totals, log_probs)

    @property
    def shares(self) -> Tensor:
        """Size of each mask as a fraction of its text's, (B,): m/D."""
        return self.masks.counts.double() / self.masks.sizes

    @cached_property
    def centred(self) -> Tensor:
        """The same minus ½, for each masked token, (M,): τ."""
        return repeated(self.shares - 0.5, self.masks.counts)

    @property
    def weights(self) -> Tensor:
        """Chance of a size if all were equally likely, divided by its chance here, (B,)."""
        sizes = self.masks.sizes.double()
        chances = self.shares**SIZE_POWER - (self.shares - 1 / sizes).clamp(min=0) ** SIZE_POWER
        return 1 / (sizes * chances)

    def sums(self) -> Tensor:
        """Return what a fit needs of these masks, (ΣD, SUMS): weighted sums over each token's
        masks. The weights are those of an estimate, scaled to have a mean of about 1."""
        assert self.log_probs is not None
        mean_share = SIZE_POWER / (1 + SIZE_POWER)
        weights = repeated(mean_share * self.weights / self.shares, self.masks.counts)
        powers = [weights]
        for _ in range(4):
            powers.append(powers[-1] * self.centred)
        values = torch.stack([*powers, *(power * self.log_probs for power in powers[:3])], 1)
        sums = torch.zeros(len(self.masks.corpus.free), SUMS, dtype=torch.float64)
        return sums.index_add_(0, self.masks.tokens, values)


@dataclass(frozen=True)
class TokenFit:
    """Predicts log p of a masked token from the size of the mask.

    For token j of a text it is β₀ + a_j + (β₁ + b_j) τ + β₂ τ², τ = m/D − ½: a parabola of the
    text, and a level and a slope of each token. The coefficients are a ridge regression on masks of
    the text itself.
    """

    corpus: Corpus
    coefficients: Tensor  # (ΣD, 3)

    @classmethod
    def of(cls, sums: Tensor, corpus: Corpus) -> "TokenFit":
        """Fit to the sums of scored masks, (ΣD, SUMS). The tokens of a text are coupled only by β:
        its equations are solved after the tokens' own were eliminated."""
        equations = sums[:, MOMENTS]  # (ΣD, 3, 4), with the right side
        of_tokens = equations[:, :2]
        matrices = of_tokens[..., :2] + TOKEN_PRECISIONS
        solved, _ = torch.linalg.solve_ex(matrices, of_tokens)  # (ΣD, 2, 4)
        of_texts = _by_text(equations - of_tokens[..., :3].mT @ solved, corpus)  # (N, 3, 4)
        prior = TEXT_PRECISION * torch.eye(3, dtype=torch.float64)
        beta, _ = torch.linalg.solve_ex(of_texts[..., :3] + prior, of_texts[..., 3])  # (N, 3)
        coefficients = beta.repeat_interleave(corpus.sizes, dim=0)
        own_terms = solved[..., 3] - (solved[..., :3] @ coefficients[..., None])[..., 0]
        coefficients[:, :2] += own_terms
        return cls(corpus, coefficients)

    def values(self, scored: ScoredMasks) -> Tensor:
        """Return an estimate of the cumulative score of its text from each mask, (B,): the score of
        what the fit does not predict, plus the exact cumulative score of the prediction. It is
        unbiased if the fit does not depend on the mask."""
        masks, tau = scored.masks, scored.centred
        level, slope, curve = self.coefficients[masks.tokens].T
        predicted = level + tau * (slope + tau * curve)
        residual = scored.totals - torch.segment_reduce(predicted, "sum", lengths=masks.counts)
        return scored.weights * residual / scored.shares + self._exact()[masks.sequences]

    def _exact(self) -> Tensor:
        """Return the cumulative score of the prediction of each text, (N,): the sum over tokens of
        its mean over sizes. The mean of τ is 1/2D and that of τ² is 1/12 + 1/6D²."""
        sizes = self.corpus.sizes.double()
        means = torch.stack([torch.ones_like(sizes), 1 / (2 * sizes), 1 / 12 + 1 / (6 * sizes**2)])
        return (_by_text(self.coefficients, self.corpus) * means.T).sum(1)


def sizes_at(quantiles: Tensor, sizes: Tensor) -> Tensor:
    """Return the mask sizes at quantiles, above 0 and at most 1, for texts of these numbers of
    tokens, (B,)."""
    counts = (quantiles ** (1 / SIZE_POWER) * sizes).ceil().long()
    return torch.minimum(counts.clamp(min=1), sizes)


def cross_fitted(folds: list[ScoredMasks]) -> Tensor:
    """Return the values of the masks of F folds, where each has n masks of each text, text by text:
    (N, F · n). Those of a fold are by a fit to the others."""
    corpus, each = folds[0].masks.corpus, range(len(folds))
    sums = torch.stack([fold.sums() for fold in folds])
    fits = [TokenFit.of(sums[[k for k in each if k != i]].sum(0), corpus) for i in each]
    values = [fit.values(fold) for fit, fold in zip(fits, folds, strict=True)]
    return torch.cat([fold_values.view(len(corpus), -1) for fold_values in values], 1)


def _by_text(of_tokens: Tensor, corpus: Corpus) -> Tensor:
    """Return the sums over the tokens of each text, (ΣD, …) to (N, …)."""
    return torch.segment_reduce(of_tokens, "sum", lengths=corpus.sizes)

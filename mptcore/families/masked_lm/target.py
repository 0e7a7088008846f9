"""Sampling sequences and masks until the area has the standard error that was asked for."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.estimation.allocation import MARGIN, affordable, neyman
from mptcore.families.masked_lm.estimates import cell_widths
from mptcore.families.masked_lm.masked_batch import CHUNK_TOKENS, Draws, Masker
from mptcore.families.masked_lm.model import Scoring
from mptcore.specs.families.masked_lm import LM_PILOT

SMOOTHED_OVER = 21
"""Neighbouring rates whose variances are averaged for the plan: a few draws say little."""


@dataclass(frozen=True)
class Sampled:
    """The score at each of K rates and the area under it per token, for each row."""

    means: Tensor  # (rows, K)
    std_errs: Tensor  # (rows, K)
    counts: Tensor  # (K,)
    area: Tensor  # (rows,)
    area_std_err: Tensor  # (rows,)


def sample_to_target(
    masker: Masker,
    rates: Sequence[float],
    target: float,
    max_masks: int,
    generator: torch.Generator,
    scored: Callable[[Draws], Scoring],
) -> Iterator[int | Sampled]:
    """Rounds of draws until the first row's area per token has the standard error `target`, or
    `max_masks` are scored; between them, how many masks were scored more.

    The rates are strata. A draw takes a sequence with a probability proportional to its length, so
    that its mean log probability estimates that of a token. Draws go to the rates in proportion to
    width × standard deviation (Neyman 1934), as a pilot, then the rounds so far, measured it.
    """
    at = torch.tensor(rates, dtype=torch.float64)
    widths = torch.tensor(cell_widths(rates), dtype=torch.float64)
    together = max(1, CHUNK_TOKENS // int(masker.corpus.lengths.max()))
    values: list[list[Tensor]] = [[] for _ in rates]

    def add(more: Tensor) -> Generator[int, None, None]:
        plan = torch.repeat_interleave(torch.arange(len(rates)), more)
        for places in torch.split(plan, together):
            found = yield from _draw(masker, places, at[places], generator, scored)
            for k in set(places.tolist()):
                values[k].append(found[:, places == k])

    more = torch.full((len(rates),), LM_PILOT)
    left = max_masks - int(more.sum())
    yield from add(more)
    state = _state(values, widths)
    values = [[] for _ in rates]  # what chooses how many are drawn is left out of the mean
    drawn = torch.zeros_like(more)
    while left >= 2 * len(rates):
        deviation = widths * _smoothed(state.std_errs[0].square() * state.counts).sqrt()
        wanted = neyman(deviation, target**2 / MARGIN)
        least = drawn // 20 + 1 if drawn.any() else drawn + 2
        more = affordable(torch.maximum(wanted - drawn, least), left)
        yield from add(more)
        drawn += more
        left -= int(more.sum())
        yield (state := _state(values, widths))
        if state.area_std_err[0] <= target:
            return


def _draw(
    masker: Masker,
    places: Tensor,
    rates: Tensor,
    generator: torch.Generator,
    scored: Callable[[Draws], Scoring],
) -> Scoring:
    """The mean log probability of a masked token in each draw, (rows, B), returned."""
    sizes = masker.corpus.sizes.double()
    chosen = torch.multinomial(sizes, len(places), replacement=True, generator=generator)
    draws, weights = masker.at_rates(chosen, rates, generator)
    values = yield from scored(draws)
    return masker.weighted(values[:, 0], draws, weights) / (rates * sizes[chosen])


def _state(values: list[list[Tensor]], widths: Tensor) -> Sampled:
    joined = [torch.cat(own, 1) for own in values]
    counts = torch.tensor([own.shape[1] for own in joined])
    means = torch.stack([own.mean(1) for own in joined], 1)
    variances = torch.stack([own.var(1) for own in joined], 1) / counts
    errors = (variances * widths.square()).sum(1).sqrt()
    return Sampled(means, variances.sqrt(), counts, (means * widths).sum(1), errors)


def _smoothed(variances: Tensor) -> Tensor:
    """The mean over the neighbours of each, fewer at the ends."""
    half = min(SMOOTHED_OVER, len(variances)) // 2
    ones = torch.ones(1, 1, 2 * half + 1, dtype=variances.dtype)
    sums = torch.nn.functional.conv1d(variances[None, None], ones, padding=half)
    counts = torch.nn.functional.conv1d(torch.ones_like(variances)[None, None], ones, padding=half)
    return (sums / counts)[0, 0]

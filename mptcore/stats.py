"""Student's t distribution, shares and ranks. scipy is imported inside the functions: the service
imports the presets, and would wait for it."""

import math
from collections.abc import Sequence


def t_cdf(t: float, degrees: float) -> float:
    """Return the probability below t. Infinite degrees of freedom are the normal distribution."""
    from scipy.special import stdtr

    return float(stdtr(degrees, t))


def t_quantile(probability: float, degrees: float) -> float:
    """Return the t below which `probability` lies."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def centred_share(successes: int, trials: int) -> tuple[float, float]:
    """Return the share of successes with its standard error, which is never 0: both are those with
    two more successes and two more failures (Agresti and Coull 1998)."""
    share = (successes + 2) / (trials + 4)
    return share, math.sqrt(share * (1 - share) / (trials + 4))


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks of values, from 1; equal values share their mean rank."""
    from scipy.stats import rankdata

    ranks: list[float] = rankdata(values).tolist()
    return ranks

"""Decide when a sampled number, or one computed by quadrature, should not be quoted.

`judged` decides for the scores of any model. A family decides for its log p(x), in its `Evidence`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from mptcore.estimation.estimate import Estimate
from mptcore.estimation.model import Model

MIN_ESS = 20
"""Minimum effective sample size. Below it the delta method underestimates the standard error of the
logarithm of a mean weight."""
MAX_DOUBTFUL = 0.05
"""Maximum share of observations, or of conditionals, whose importance weights may be unreliable
after they were drawn again."""
DOUBTFUL_ERROR = 0.5
"""Possible error in nats of a conditional whose importance weights are unreliable, assumed to have
the same sign for all of them. If draws missed one of two modes of a posterior, the largest measured
error was 0.47 for each such term."""
MAX_BIAS = 0.05
"""Maximum bias in nats if there is no standard error to compare it with, as for grids."""


def judged(
    estimate: Estimate, models: Sequence[Model], sizes: Sequence[int], factor: float = 1
) -> Estimate:
    """Return an estimate with the error that unreliable weights may cause, and with the reason not
    to quote it, if there is one. It is `factor` times the scores of these sizes, of one model or
    the difference of two."""
    if estimate.doubt:
        estimate = replace(estimate.widened(estimate.doubt), doubt=0.0)
    reason = _sampling_reason(estimate, models)
    if reason is None:
        reason = _quadrature_reason(estimate, models, sizes, factor)
    return estimate if reason is None else replace(estimate, not_final_reason=reason)


def _sampling_reason(estimate: Estimate, models: Sequence[Model]) -> str | None:
    for model in models:
        if model.is_sampled:
            if model.not_final_reason is not None:
                return model.not_final_reason
            return doubtful_reason(estimate.bias, estimate.std_err, estimate.doubtful, model.advice)
    return None


def _quadrature_reason(
    estimate: Estimate, models: Sequence[Model], sizes: Sequence[int], factor: float
) -> str | None:
    """Return why models that integrate by quadrature do not give a final estimate. For all sizes
    together the estimate equals the LML by the same quadrature, Eq. (5), so the check of the LML
    decides."""
    for model in models:
        if not model.is_tractable:
            continue
        if len(sizes) == model.dim:
            reason = model.evidence().not_final_reason
        else:
            shift = factor * math.fsum(model.grid_shift(size) for size in sizes)
            share = factor * len(sizes) / model.dim
            reason = shift_reason(shift, share, estimate.known_std_err)
        if reason is not None:
            return reason
    return None


def doubtful_reason(bias: float, std_err: float | None, share: float, advice: str) -> str | None:
    """Return why a number should not be quoted, given its estimated bias, its standard error and
    the share of observations with unreliable weights."""
    if share > MAX_DOUBTFUL:
        detail = f"the importance weights of {share:.0%} of its terms cannot be trusted"
        return f"not final: {detail}, more than {MAX_DOUBTFUL:.0%}; {advice}"
    limit, what = (MAX_BIAS, "") if std_err is None else (std_err, "its error of ")
    if not abs(bias) <= limit:  # NaN is not known, and not final
        detail = f"its estimated bias of {bias:.2g} nats is beyond {what}{limit:.2g}"
        return f"not final: {detail}; {advice}"
    return None


def shift_reason(shift: float, share: float, std_err: float | None) -> str | None:
    """Return why a score computed by quadrature should not be quoted, given how far another
    quadrature moves it and the share of the LML's dimensions that it covers. It may move by this
    share of MAX_BIAS, or by its standard error."""
    limit = max(MAX_BIAS * share, std_err or 0.0)
    if shift <= limit:  # NaN is not known, and not final
        return None
    detail = f"another grid would move it by {shift:.2g} nats, more than {limit:.2g}"
    return f"not final: {detail}; raise the grid's nodes"

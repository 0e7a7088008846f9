"""Metrics by their names: their short meanings, which of them are the result of a run, and which
choose between models."""

from collections.abc import Mapping
from typing import Any

POPULATION = "_population"
"""Suffix of metrics whose errors cover the choice of texts or rows, which all seeds share."""
OF_ROWS = {"lml_heldout_population": "held-out rows", "lml_population": "rows"}
"""Choices that the errors of these metrics cover; those of others cover the choice of texts."""

OF = {
    "lml": "log marginal likelihood of a row, in nats",
    "mpt": "sum of the masked scores: estimates lml",
    "difference": "mpt minus lml",
    "bias": "biased_score minus lml",
    "biased_score": "D times the score of the one mask size",
    "joint_score": "log p of the masked values given the others",
    "score_sum": "sum of the scores of the listed sizes",
    "score_difference": "model minus baseline, on the same masks",
    "masks": "masks that were scored",
    "target_reached": "1: target_std_err was reached",
    "elbo": "lower bound on lml, by the encoder",
    "kl": "divergence of the encoder from the prior",
    "active_units": "latent dimensions that the encoder uses",
    "lml_ais": "lml by annealed importance sampling, of a few rows",
    "lml_ais_iwae": "lml by iwae, of the same rows",
    "lml_simulated_below": "lower bound on lml, for rows drawn from the model",
    "lml_simulated_above": "upper bound on lml, for rows drawn from the model",
    "lml_simulated_gap": "lml_simulated_above minus lml_simulated_below",
    "area": "masked scores, integrated over rates, for {dimensions} tokens: nats",
    "area_width": "part of the rates from 0 to 1 that area covers",
    "cumulative": "masked scores, summed over all mask sizes, of a text: nats",
    "pll": "sum of log p(token given all others) of a text: nats",
    "pll_word_l2r": "pll with the later tokens of a word masked too",
    "unmasked": "sum of log p(token) with nothing masked: nats",
    "conditional": "pll of the tokens after the given beginning",
    "any_order_spread": "spread of a text's log-likelihood over orders; 0 if coherent",
    "any_order_spread_per_token": "any_order_spread, for each token",
    "bits_per_token": "minus the metric in `of`, in bits for each token",
    "perplexity": "2 to the power of bits_per_token",
    "sequences_left_out": "texts without a token to mask, and rows without text",
    "sequences_cut": "texts that were truncated",
    "texts_scored": "texts with a score",
    "texts_left_out": "texts without a score: `mpt texts` shows why",
    "texts_with_unknown_tokens": "texts with tokens that the model does not know: column `unknown`",
    "texts_over_target": "texts whose error is above target_std_err",
    "groups_scored": "groups with at least two scored texts",
    "groups_left_out": "groups with fewer scored texts",
    "groups_decided": "groups whose best text is the best at 95 %",
    "accuracy": "share of groups whose first text has the highest score",
    "accuracy_by_category": "the same in each category",
    "spearman": "rank correlation of the first score with the label",
}
"""Meanings by the name of a metric."""
FORMS = {
    "_half_interval": "half the width of the 95 % interval of {of}",
    POPULATION: "{of}, with the error over the choice of {rows}",
    "_not_final": "{of}, which is not final yet",
    "_bias_estimate": "estimate of the bias that is left in {of}",
    "_doubtful": "share of the importance weights of {of} that are in doubt",
    "_quadrature_shift": "how much {of} differs on another grid, in nats",
    "_difference": "{of} of the model minus that of the baseline",
    "_ess": "median effective sample size of {of}",
    "_heldout": "{of} of the held-out rows",
}
"""Meanings by the end of a metric's name; `of` is its beginning."""


RESULTS = {
    "lml": "LML",
    "mpt": "MPT",
    "lml_heldout": "LML, held out",
    "mpt_heldout": "MPT, held out",
    "area": "Area under the curve",
    "cumulative": "Cumulative score",
    "pll": "Pseudo-log-likelihood",
    "pll_word_l2r": "Pseudo-log-likelihood, word by word",
    "conditional": "Conditional pseudo-log-likelihood",
    "unmasked": "Score without masks",
    "accuracy": "Accuracy",
    "spearman": "Rank correlation",
}
"""Labels of the metrics that are the result of a run, in the order in which they are shown."""
WITHOUT_UNIT = ("accuracy", "spearman")
"""Results that are not in nats."""
INTERIM = frozenset({"epoch", "step"})
"""Labels of metrics of `train.curve_at`, which are not the final result."""
BY_MERIT = ("lml_heldout", "mpt_heldout", "lml", "mpt")
"""Metrics that choose between models, the most trustworthy first; larger is better."""
HIGHER_IS_BETTER = frozenset({*BY_MERIT, "elbo", "elbo_heldout", "area"})
COUNTS = ("masks", "target_reached", "area_width", "active_units", "kl")
COUNTS_OF = ("texts_", "groups_", "sequences_")
QUALITIES = ("_ess", "_bias_estimate", "_doubtful", "_half_interval")
"""Names, beginnings and ends of names of metrics that describe the work, a model or the quality of
an estimate, but are no estimates."""


def is_estimate(name: str) -> bool:
    """Return whether a metric is an estimate. A run whose estimates are all NaN has failed."""
    return name not in COUNTS and not name.startswith(COUNTS_OF) and not name.endswith(QUALITIES)


def meaning(name: str, spec: Mapping[str, Any]) -> str:
    """Return what a metric of an experiment with this spec is, in a few words. Empty if it is not
    known."""
    told = OF.get(name, "").format(dimensions=(spec.get("evaluate") or {}).get("dimensions"))
    for suffix, form in FORMS.items():
        if name.endswith(suffix) and name not in OF:
            told = form.format(of=name.removesuffix(suffix), rows=OF_ROWS.get(name, "texts"))
            break
    is_scaled = name in ("lml", "lml_heldout") and spec["data"].get("standardize")
    return f"{told}; of standardized values" if is_scaled else told

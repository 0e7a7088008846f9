"""The result of an experiment, which lists, pages and commands show first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mptcore.protocol.metrics import HIGHER_IS_BETTER, INTERIM, RESULTS, WITHOUT_UNIT, meaning
from service.records.means import Mean, over_seeds
from service.records.results import MetricRow, parsed_labels

Document = dict[str, Any]
"""Data as in the schema of the same name. An experiment may have 100,000 metrics, and objects of
pydantic would take five times as long."""
DIFFERENCES = {"mpt": ("lml", "difference"), "mpt_heldout": ("lml_heldout", "difference_heldout")}
"""The LML that each score estimates, and the metric with their difference."""
FOR_RESULTS = (*RESULTS, *(difference for _, difference in DIFFERENCES.values()))
"""Metrics from which a result is made."""
PER_TOKEN = "area"
"""Metric of `evaluate.dimensions` tokens."""
AGREE, DIFFER = 2.0, 3.0
"""Standard errors of a difference up to which a score agrees with the LML, and from which it
differs hardly by chance."""


def summary(metrics: Iterable[MetricRow], spec: Mapping[str, Any]) -> list[Document]:
    """Return the means of metrics over seeds, as in `SummaryRow`: first the results of the model
    after training, in the order of `RESULTS`, then all others in the order of their records."""
    means = over_seeds(
        {
            "name": name,
            "labels": parsed_labels(labels),
            "value": value,
            "std_err": std_err,
            "reason": reason,
        }
        for _, _, name, labels, value, std_err, reason in metrics
    )
    results = _results(means, spec)
    shown = {id(mean) for mean, _ in results}
    others = [mean for mean in means if id(mean) not in shown]
    meanings = {name: meaning(name, spec) for name in {mean.name for mean in means}}
    rows = [*results, *((mean, {}) for mean in others)]
    return [_row(mean, meanings[mean.name], spec, result) for mean, result in rows]


def _results(means: Sequence[Mean], spec: Mapping[str, Any]) -> list[tuple[Mean, Document]]:
    """Return the results of the model itself, each with the fields that only results have. Until
    there is a final value, the latest of `train.curve_at` is the result."""
    by_key: dict[tuple[tuple[tuple[str, Any], ...], str], list[Mean]] = {}
    for mean in means:
        if mean.name in FOR_RESULTS and mean.labels.get("model", "model") == "model":
            others = tuple(pair for pair in mean.labels.items() if pair[0] not in INTERIM)
            by_key.setdefault((others, mean.name), []).append(mean)
    groups = list(dict.fromkeys(labels for labels, name in by_key if name in RESULTS))
    objectives = {mean.labels.get("objective") for mean in means} - {None}
    results = []
    for labels, name in ((labels, name) for labels in groups for name in RESULTS):
        if (labels, name) not in by_key:
            continue
        mean, before = _after_and_before(by_key[labels, name], spec)
        time, objective = _time(mean), mean.labels.get("objective")
        parts = [
            RESULTS[name],
            f"trained by {objective}" if len(objectives) > 1 and objective else None,
            f"{time[0]} {time[1]}" if time else None,
        ]
        result: Document = {"label": ", ".join(filter(None, parts)), "before": before}
        if name in DIFFERENCES and time is None:
            lml, difference = (_final(by_key.get((labels, key), ())) for key in DIFFERENCES[name])
            result["agreement"] = _agreement(mean, lml, difference)
        results.append((mean, result))
    return results


def _after_and_before(means: Sequence[Mean], spec: Mapping[str, Any]) -> tuple[Mean, Any]:
    """Return the final mean, or else the latest, and the first of `train.curve_at` as in `Before`.
    None for the latter if there is none from before the end of the training."""
    interim = [(time, mean) for mean in means if (time := _time(mean)) is not None]
    interim.sort(key=lambda pair: pair[0])
    after = _final(means) or interim[-1][1]
    if not interim or interim[0][1] is after:
        return after, None
    (unit, number), first = interim[0]
    if number == (spec.get("train") or {}).get(f"{unit}s"):
        return after, None
    return after, {"at": {unit: number}, "value": first.value, "std_err": first.std_err}


def _final(means: Sequence[Mean]) -> Mean | None:
    return next((mean for mean in means if _time(mean) is None), None)


def _time(mean: Mean) -> tuple[str, int] | None:
    """Return the epoch or step of a metric. None: it is final."""
    return next(((unit, mean.labels[unit]) for unit in mean.labels if unit in INTERIM), None)


def _agreement(mpt: Mean, lml: Mean | None, difference: Mean | None) -> Document | None:
    """Return whether a score agrees with the LML, by the error of their difference: that of the
    score where the LML is exact."""
    if difference is not None and difference.value is not None:
        gap, std_err = difference.value, difference.std_err
    elif lml is None or lml.value is None or lml.std_err != 0 or mpt.value is None:
        return None
    else:
        gap, std_err = mpt.value - lml.value, mpt.std_err
    if not std_err:
        return None
    errors = abs(gap) / std_err
    outcome = "agree" if errors <= AGREE else "differ" if errors > DIFFER else "unclear"
    text = "they agree" if errors <= AGREE else f"they differ by {errors:.2g} standard errors"
    return {"outcome": outcome, "text": text, "value": gap, "std_err": std_err}


def _row(mean: Mean, words: str, spec: Mapping[str, Any], result: Document) -> Document:
    is_in_nats = mean.name in RESULTS and mean.name not in WITHOUT_UNIT
    tokens = (spec.get("evaluate") or {}).get("dimensions") if mean.name == PER_TOKEN else None
    return {
        "name": mean.name,
        "labels": mean.labels,
        "title": mean.title,
        "value": mean.value,
        "std_err": mean.std_err,
        "count": mean.count,
        "reason": mean.reason,
        "covers": mean.covers,
        "meaning": words,
        "higher_is_better": mean.name in HIGHER_IS_BETTER,
        "label": result.get("label"),
        "unit": "nats" if is_in_nats else None,
        "tokens": tokens,
        "before": result.get("before"),
        "agreement": result.get("agreement"),
    }

"""Areas and scores of language models by few rates, or by one mask of each sequence at a rate: the
share of seeds for which two standard errors contain the truth. Where there is no error, the reason
is shown. The truth is the mean of very many masks."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from mptcore.families.masked_lm.curve import CorpusEvaluation
from mptcore.families.masked_lm.masks import Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.protocol.records import Metric, Point, Record
from mptcore.runtime.state import RunState
from mptcore.specs import MaskedLmEvaluate
from tests.support import tiny_lm
from tests.support.runs import records_of
from tests.support.texts import CPU, corpus_of

SEEDS = 1000
TRUTHS = 8
"""Runs of 100 masks of each sequence whose mean is the truth."""
NINETEEN = [percent / 100 for percent in range(5, 100, 5)]
CASES: dict[str, tuple[Sequence[float], int, int]] = {  # rates, masks, sequences
    "0.01 and 0.1": ([0.01, 0.1], 1, 40),
    "0.5 and 0.95": ([0.5, 0.95], 1, 12),
    "0.01, 0.3, 0.6, 0.9": ([0.01, 0.3, 0.6, 0.9], 1, 12),
    "19 rates": (NINETEEN, 1, 16),
    "two masks, 0.01 and 0.1": ([0.01, 0.1], 2, 40),
    "two masks, 0.5 and 0.95": ([0.5, 0.95], 2, 12),
    "two masks, four rates": ([0.01, 0.3, 0.6, 0.9], 2, 12),
}


@dataclass(frozen=True)
class Coverage:
    """Coverage of one figure: the number of seeds with an error, and the share of them that contain
    the truth."""

    given: int
    within: float
    reason: str


Figure = Point | Metric


def coverages(case: str, repeats: int, truths: int = TRUTHS) -> dict[str, Coverage]:
    """Return the coverage of the area and of the score at each rate."""
    rates, per_size, sequences = CASES[case]
    model = MaskedLm(tiny_lm.network(scale=8.0), CPU, torch.float32)
    masker = Masker(corpus_of(tiny_lm.lines(sequences)), 4, 15)

    def figures(seed: int, masks: int) -> dict[str, Figure]:
        asked = {"masks": {"rates": rates, "per_size": masks}, "dimensions": 10}
        spec = MaskedLmEvaluate.model_validate(asked)
        evaluation = CorpusEvaluation(spec, {"model": model}, masker, {}, RunState())
        found = records_of(evaluation.records(torch.Generator().manual_seed(seed)))
        return dict(_named(found))

    exact = [figures(10**6 + i, 100) for i in range(truths)]
    runs = [figures(seed, per_size) for seed in range(repeats)]
    return {
        name: _coverage([run[name] for run in runs], [one[name] for one in exact])
        for name in runs[0]
    }


def _named(records: Iterable[Record]) -> Iterable[tuple[str, Figure]]:
    for record in records:
        if isinstance(record, Metric) and record.name == "area":
            yield "area", record
        if isinstance(record, Point) and record.series == "score_by_rate":
            yield f"S({record.x:g})", record


def _coverage(found: Sequence[Figure], exact: Sequence[Figure]) -> Coverage:
    truth = math.fsum(one.value or math.nan for one in exact) / len(exact)
    z = [((one.value or math.nan) - truth) / one.std_err for one in found if one.std_err]
    within = sum(abs(one) < 2 for one in z) / len(z) if z else math.nan
    return Coverage(len(z), within, found[0].reason or "")


def main() -> None:
    torch.set_num_threads(1)
    print(f"Within two standard errors of the truth, {SEEDS} seeds")
    for case in CASES:
        found = coverages(case, SEEDS)
        area = found.pop("area")
        if not area.given:
            print(f"{case:26} no error: {area.reason}", flush=True)
            continue
        worst = min(found, key=lambda name: found[name].within)
        print(f"{case:26} area {area.within:.1%}, worst rate {worst} {found[worst].within:.1%}")


if __name__ == "__main__":
    main()

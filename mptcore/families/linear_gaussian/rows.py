"""Save the log-likelihood of each row of the data as a table."""

import csv
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.densities import log_probs
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.protocol.records import Artifact, Log
from mptcore.runtime.durable import write_durably

FILE = "rows.csv"
MEDIA_TYPE = "text/csv"
COLUMNS = ("row", "seed", "values", "log_likelihood", "p_value")


def keep_rows(
    densities: Mapping[int, LowRankGaussian], data: Dataset, folder: Path | None
) -> Artifact | Log:
    """Write a line for each seed and row of the data under `folder`, if there is one: the row from
    0, its number of observed values, their log-likelihood in nats, and the probability that a row
    of the model is as unlikely. The distance from the mean that the likelihood measures has a
    chi-squared distribution."""
    if folder is None:
        return Log("info", "the scores of rows are not kept: no work directory was given")
    x, places = _in_order(data)
    observed = (~x.isnan()).sum(1)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for seed, density in densities.items():
        scores = log_probs(density, x)
        of_mean = log_probs(density, torch.where(x.isnan(), torch.nan, density.mean))
        p_values = torch.special.gammaincc(observed / 2, (of_mean - scores).clamp(min=0))
        each = observed.tolist(), scores.tolist(), p_values.tolist()
        writer.writerows(zip(places, [seed] * len(x), *each, strict=True))
    content = text.getvalue().encode()
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / FILE, content)
    return Artifact(FILE, MEDIA_TYPE, hashlib.sha256(content).hexdigest())


def _in_order(data: Dataset) -> tuple[Tensor, list[int]]:
    """Return all rows of the data, held-out ones too, (N, D), and their places in the source."""
    if data.heldout is None or data.heldout_rows is None:
        return data.x, [*range(len(data.x))]
    x = torch.cat([data.x, data.heldout])
    is_kept = torch.ones(len(x), dtype=torch.bool)
    is_kept[data.heldout_rows] = False
    places = torch.cat([is_kept.nonzero().flatten(), data.heldout_rows])
    order = places.argsort()
    return x[order], places[order].tolist()

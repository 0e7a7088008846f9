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
COLUMNS = ("row", "seed", "values", "log_likelihood")


def keep_rows(
    densities: Mapping[int, LowRankGaussian], data: Dataset, folder: Path | None
) -> Artifact | Log:
    """Write a line for each seed and row of the data under `folder`, if there is one: the row from
    0, its number of observed values, and their log-likelihood in nats."""
    if folder is None:
        return Log("info", "the scores of rows are not kept: no work directory was given")
    x, places = _in_order(data)
    observed = (~x.isnan()).sum(1).tolist()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for seed, density in densities.items():
        scores = log_probs(density, x).tolist()
        writer.writerows(zip(places, [seed] * len(x), observed, scores, strict=True))
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

"""Save the log-likelihood of each row of the data as a table."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.data.saved_facts import ROW, id_columns
from mptcore.families.linear_gaussian.density import LowRankGaussian, log_probs
from mptcore.families.linear_gaussian.unusual_columns import unusual_columns
from mptcore.protocol.records import Artifact, Log
from mptcore.runtime.artifacts import keep

FILE = "rows.csv"
MEDIA_TYPE = "text/csv"
COLUMNS = (ROW, "seed", "values", "log_likelihood", "p_value", "unusual_columns")
UNUSUAL = 0.05
"""P-value below which a row is unusual, and a column of it after the first."""


def save_rows(
    densities: Mapping[int, LowRankGaussian], data: Dataset, folder: Path | None
) -> Artifact | Log:
    """Write a line for each seed and row of the data under `folder`, if there is one: the row from
    0, its ids, its number of observed values, their log-likelihood in nats, the probability that a
    row of the model is as unlikely, and the columns that make it so. The distance from the mean
    that the likelihood measures has a chi-squared distribution."""
    if folder is None:
        return Log("info", "the scores of rows are not kept: no work directory was given")
    x, rows = _in_order(data)
    observed = (~x.isnan()).sum(1)
    names = data.columns or [*map(str, range(data.dim))]
    ids = id_columns(data.ids, COLUMNS)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((ROW, *ids, *COLUMNS[1:]))
    for seed, density in densities.items():
        scores = log_probs(density, x)
        of_mean = log_probs(density, torch.where(x.isnan(), torch.nan, density.mean))
        p_values = torch.special.gammaincc(observed / 2, (of_mean - scores).clamp(min=0))
        unusual = _unusual_columns(density, x, p_values, names)
        each = observed.tolist(), scores.tolist(), p_values.tolist(), unusual
        writer.writerows(zip(rows, *ids.values(), [seed] * len(x), *each, strict=True))
    content = text.getvalue().encode()
    return keep(folder, FILE, MEDIA_TYPE, lambda: [content])


def _unusual_columns(
    density: LowRankGaussian, x: Tensor, p_values: Tensor, names: Sequence[str]
) -> list[str]:
    """Return the columns of each unusual row with their standardized residuals, such as
    `b +4.2; c -3.1`, and nothing for the others."""
    rows = (p_values < UNUSUAL).nonzero().flatten()
    columns, values = (part.tolist() for part in unusual_columns(density, x[rows], UNUSUAL))
    texts = [""] * len(x)
    for row, indices, residuals in zip(rows.tolist(), columns, values, strict=True):
        pairs = zip(indices, residuals, strict=True)
        texts[row] = "; ".join(f"{names[i]} {e:+.3g}" for i, e in pairs if not math.isnan(e))
    return texts


def _in_order(data: Dataset) -> tuple[Tensor, list[int]]:
    """Return all rows of the data, held-out ones too, (N, D), and their numbers in the source."""
    if data.heldout is None or data.heldout_rows is None:
        return data.x, [*range(len(data.x))]
    x = torch.cat([data.x, data.heldout])
    is_kept = torch.ones(len(x), dtype=torch.bool)
    is_kept[data.heldout_rows] = False
    rows = torch.cat([is_kept.nonzero().flatten(), data.heldout_rows])
    order = rows.argsort()
    return x[order], rows[order].tolist()

"""Rows that are copies of others, and held-out ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mptcore.data.dataset import Dataset, copies_warning
from mptcore.data.duplicates import copied_rows, repeated_rows
from mptcore.protocol.records import Log
from mptcore.run import run
from tests.support.runs import spec_of
from tests.support.vae_specs import deep_vae


def by_sets(data: Dataset) -> int:
    """Count copies row by row."""
    assert data.heldout is not None
    kept = {tuple(map(str, row)) for row in (data.x + 0.0).tolist()}
    return sum(tuple(map(str, row)) in kept for row in (data.heldout + 0.0).tolist())


def heldout_copies(data: Dataset) -> int:
    assert data.heldout is not None
    return len(copied_rows(data.heldout.numpy(), data.x.numpy()))


def whole_numbers(rows: int, dim: int, values: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(-values, values, (rows, dim), generator=generator).double()


@pytest.mark.parametrize("x", [
    whole_numbers(4000, 3, 6), whole_numbers(4000, 20, 1), whole_numbers(70_000, 2, 200) / 7,
], ids=["whole", "binary", "fractions"])  # fmt: skip
def test_copies_are_counted_as_one_by_one(x: Tensor) -> None:
    x[::7, 1] = torch.nan
    x[::5, 0] = -0.0
    data = Dataset(x).held_out(len(x) // 5, 1)
    count = heldout_copies(data)
    assert count == by_sets(data)
    assert 0 < count < len(x) // 5
    distinct = {tuple(map(str, row)) for row in (x + 0.0).tolist()}
    assert len(repeated_rows(x.numpy())) == len(x) - len(distinct)


def test_rows_that_differ_anywhere_are_no_copies() -> None:
    x = torch.randn(500, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.cat([x, x * (1 + 2e-16), x.flip(1)])
    assert heldout_copies(Dataset(x).held_out(300, 0)) == by_sets(Dataset(x).held_out(300, 0))
    assert heldout_copies(Dataset(x[:500]).held_out(100, 0)) == 0
    assert copies_warning(Dataset(x)) is None


@pytest.mark.parametrize("family", ["ppca", "vae"])
def test_a_run_warns_of_copies(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    x = np.random.default_rng(1).standard_normal((60, 4))
    x[30:40] = x[:10]
    folder = tmp_path / "datasets" / "twice"
    folder.mkdir(parents=True)
    np.save(folder / "data.npy", x)
    data = {"source": "upload", "dataset": "twice", "n": 60, "dim": 4, "heldout": 0.25}
    masks = {"schedule": "fixed", "size": 2, "per_size": 4}
    spec: dict[str, Any] = {"data": data, "evaluate": {"masks": masks}, "seeds": [1, 2]}
    if family == "ppca":
        spec["model"] = {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"}
    else:
        spec["model"] = deep_vae(latent_dim=2, width=8, draws=4, rounds=2)
        spec["evaluate"]["lml"] = {"method": "iwae", "samples": 20}
    records = list(run(spec_of(spec)))
    warnings = [one.message for one in records if isinstance(one, Log) and one.level == "warning"]
    count = by_sets(Dataset(torch.from_numpy(x)).held_out(15, 0))
    assert 0 < count < 15
    assert [text for text in warnings if f"{count} of 15 held-out rows are exact copies" in text]
    assert len([text for text in warnings if "exact cop" in text]) == 1

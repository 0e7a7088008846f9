"""Ids of rows in files that have columns of their own."""

from pathlib import Path

import pytest
import torch

from mptcore.data.dataset import Dataset
from mptcore.data.saved_facts import id_columns, save_heldout_rows


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (None, []),
        (["id", "batch"], ["id", "batch"]),
        (["row"], ["row_id"]),
        (["row", "row_id"], ["row_id_id", "row_id"]),
        (["row_id", "row"], ["row_id", "row_id_id"]),
        (["", "seed"], ["_id", "seed_id"]),
        (["", "_id"], ["_id_id", "_id"]),
    ],
)
def test_no_two_columns_have_one_name(ids: list[str] | None, expected: list[str]) -> None:
    given = None if ids is None else {name: [f"{name}1"] for name in ids}
    columns = id_columns(given, ["row", "seed"])
    assert [*columns] == expected
    assert [values[0][:-1] for values in columns.values()] == (ids or [])


def test_nothing_is_kept_without_ids_held_out_rows_or_a_folder(tmp_path: Path) -> None:
    data = Dataset(torch.zeros(4, 2), ids={"id": [*"abcd"]})
    heldout = data.held_out(1, 0)
    assert save_heldout_rows(data, tmp_path) is None
    assert save_heldout_rows(heldout, None) is None
    assert save_heldout_rows(Dataset(data.x).held_out(1, 0), tmp_path) is None
    assert not any(tmp_path.iterdir())
    assert save_heldout_rows(heldout, tmp_path) is not None

"""A sweep's table in the order of a column."""

import json
from typing import Any

import pytest

from mptlab.sorting import MAX_NAMED, in_order
from tests.support.commands import mpt_here
from tests.support.ppca_spec import ppca_spec

K = "model.latent_dim"


def rows(*pairs: tuple[Any, float | None]) -> list[dict[str, Any]]:
    return [
        {"point": i, "status": "succeeded", K: k, "lml": lml, "lml std_err": 0.1, "lml count": 1}
        for i, (k, lml) in enumerate(pairs)
    ]


def points(found: list[dict[str, Any]]) -> list[int]:
    return [row["point"] for row in found]


def test_rows_are_ordered_by_a_field_or_a_metric_and_none_is_last() -> None:
    table = rows((10, -3.0), (9, None), (2, -1.0), (2, -2.0))
    assert points(in_order(table, None)) == [0, 1, 2, 3]
    assert points(in_order(table, K)) == [2, 3, 1, 0]
    assert points(in_order(table, f"-{K}")) == [0, 1, 2, 3]
    assert points(in_order(table, "lml")) == [0, 3, 2, 1]
    assert points(in_order(table, "-lml")) == [2, 3, 0, 1]


def test_numbers_are_before_texts_and_lists() -> None:
    assert points(in_order(rows(("b", 0.0), ([1, 2], 0.0), (3, 0.0), ("a", 0.0)), K)) == [
        2,
        1,
        3,
        0,
    ]


def test_an_unknown_column_is_refused_with_the_known_ones() -> None:
    table = rows((1, -1.0))
    with pytest.raises(ValueError, match=r"^there is no column lm: did you mean lml\? there are "):
        in_order(table, "lm")
    for name in ("point", "status", "lml count", "mpt std_err", "zzz"):
        told = f"^there is no column {name}.* there are {K}, lml$"
        with pytest.raises(ValueError, match=told):
            in_order(table, f"-{name}")
    for count, more in ((MAX_NAMED, ""), (MAX_NAMED + 1, " and 1 more")):
        named = ", ".join(f"m{i}" for i in range(MAX_NAMED))
        with pytest.raises(ValueError, match=f"^there is no column z; there are {named}{more}$"):
            in_order([{f"m{i}": 0.0 for i in range(count)}], "z")


def test_commands_order_their_tables(environment: dict[str, str]) -> None:
    words = ("sweep", "-", "--over", f"{K}=1..3", "--name", "sorted", "--sort", f"-{K}")
    spec = json.dumps(ppca_spec(model__init="maximum_likelihood"))
    code, _, error = mpt_here({**environment, "COLUMNS": "200"}, *words, text=spec)
    assert code == 2
    assert "--sort orders the table of --watch" in error
    code, shown, error = mpt_here(environment, *words, "--watch", text=spec)
    assert code == 0, error
    assert firsts(shown) == ["3", "2", "1"]
    assert firsts(mpt_here(environment, "table", "sorted", "--sort", "lml")[1]) == ["1", "2", "3"]
    _, shown, _ = mpt_here(environment, "table", "sorted", "--sort", f"-{K}", "--json")
    assert [row[K] for row in json.loads(shown)] == [3, 2, 1]
    _, shown, _ = mpt_here(environment, "table", "sorted", "--sort", f"-{K}", "--csv", "-")
    assert [line.split(",")[3] for line in shown.splitlines()] == [K, "3", "2", "1"]
    told = f"mpt: there is no column mtp: did you mean mpt? there are {K}, lml, mpt, difference\n"
    assert mpt_here(environment, "table", "sorted", "--sort", "mtp") == (1, "", told)


def firsts(shown: str) -> list[str]:
    """First cells of the rows of a printed table."""
    cells = (line.split()[0] for line in shown.splitlines() if line.strip())
    return [cell for cell in cells if cell.isdigit()]

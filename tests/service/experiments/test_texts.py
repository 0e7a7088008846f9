"""Pages of scores of texts."""

import csv
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.db.engine import Database
from service.records import texts
from service.settings import Settings
from tests.support.attempts import submitted
from tests.support.text_tables import stored_table

PLL: list[float | None] = [-3.0, -1.0, None, -2.0, -1.0, -9.0]
ROWS: list[dict[str, Any]] = [
    {
        "row": i,
        "text": text,
        "group": None if i == 2 else str(i // 2),
        "tokens": None if pll is None else i + 1,
        "pll": pll,
        "by_token": None if pll is None else [{"text": "a", "pll": pll}],
        "reason": "no token" if pll is None else None,
    }
    for i, (text, pll) in enumerate(zip(["Ä", "b", "c", "=1+1", "e\u2028f", "g"], PLL, strict=True))
]
Ask = Callable[..., Any]


@pytest.fixture
def ask(api: TestClient, database: Database, settings: Settings) -> Ask:
    """Request the texts of an experiment with a table of six."""
    experiment_id = submitted(database)
    with database.transaction() as session:
        session.add(stored_table(settings.artifacts(experiment_id, 1), ROWS, experiment_id))

    def request(**params: Any) -> Any:
        return api.get(f"/v1/experiments/{experiment_id}/texts", params=params)

    return request


def rows_of(answer: Any) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [one["row"] for one in answer.json()["items"]]


def test_a_page_has_the_rows_without_their_tokens(ask: Ask) -> None:
    found = ask().json()
    assert found["items"] == [{k: v for k, v in row.items() if k != "by_token"} for row in ROWS]
    assert found["columns"] == [name for name in ROWS[0] if name != "by_token"]
    assert (found["total"], found["next_offset"]) == (6, None)


def test_rows_are_ordered_by_a_number_with_null_last(ask: Ask) -> None:
    assert rows_of(ask(order="pll")) == [5, 0, 3, 1, 4, 2]
    assert rows_of(ask(order="-pll")) == [1, 4, 3, 0, 5, 2]
    assert rows_of(ask(order="-row", limit=2)) == [5, 4]
    assert rows_of(ask(order="pll_per_token")) == [0, 5, 1, 3, 4, 2]
    assert rows_of(ask(order="-pll_per_token", group="0")) == [1, 0]


def test_pages_follow_each_other(ask: Ask) -> None:
    first = ask(order="-pll", limit=4)
    assert rows_of(first) == [1, 4, 3, 0]
    assert first.json()["next_offset"] == 4
    assert rows_of(ask(order="-pll", limit=4, offset=4)) == [5, 2]
    assert rows_of(ask(offset=6)) == []


def test_a_group_and_columns_are_chosen(ask: Ask) -> None:
    found = ask(group="1", columns=["row", "by_token"])
    assert found.json()["items"] == [{"row": 3, "by_token": [{"text": "a", "pll": -2.0}]}]
    assert found.json()["total"] == 1
    assert rows_of(ask(group="other")) == []


def test_csv_is_safe_for_spreadsheets(ask: Ask) -> None:
    answer = ask(format="csv", columns=["row", "text", "pll", "by_token"], order="-pll", limit=3)
    assert answer.headers["MPT-Total"] == "6"
    assert answer.headers["MPT-Next-Offset"] == "3"
    rows = [*csv.reader(io.StringIO(answer.text))]
    assert rows[0] == ["row", "text", "pll", "by_token"]
    assert rows[3] == ["3", "'=1+1", "-2.0", '[{"text":"a","pll":-2.0}]']


def test_a_page_is_bounded_in_bytes(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_PAGE_BYTES", 300)
    found, offset = [], 0
    while offset is not None:
        answer = ask(offset=offset)
        found.append(rows_of(answer))
        offset = answer.json()["next_offset"]
    assert [row for page in found for row in page] == [*range(6)]
    assert len(found) > 2
    monkeypatch.setattr(texts, "MAX_PAGE_BYTES", 1)
    assert rows_of(ask()) == [0]  # a long row is a page


@pytest.mark.parametrize(
    ("params", "pointer", "detail"),
    [
        ({"order": "text"}, "/query/order", "text is not one of row, tokens, pll"),
        ({"order": "-"}, "/query/order", " is not one of row, tokens, pll"),
        ({"columns": ["row", "x"]}, "/query/columns", "x is not one of row, text, group"),
        ({"columns": ["row", "pll", "row"]}, "/query/columns", "may be listed once only"),
        ({"limit": 10_001}, "/query/limit", "10000"),
        ({"offset": -1}, "/query/offset", "0"),
    ],
)
def test_wrong_parameters_are_named(
    ask: Ask, params: dict[str, Any], pointer: str, detail: str
) -> None:
    answer = ask(**params)
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert problem["pointer"] == pointer
    assert detail in problem["detail"]


def test_an_experiment_without_texts_is_404(api: TestClient, database: Database) -> None:
    experiment_id = submitted(database)
    answer = api.get(f"/v1/experiments/{experiment_id}/texts")
    assert answer.status_code == 404
    assert "yet" in answer.json()["detail"]
    api.post(f"/v1/experiments/{experiment_id}:cancel")
    assert "mpt score" in api.get(f"/v1/experiments/{experiment_id}/texts").json()["detail"]


def test_too_many_rows_refer_to_the_artifact(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "SMALL_BYTES", 10)
    for name, limit in (("MAX_ROWS", 5), ("MAX_FILE_BYTES", 100)):
        texts.LARGE_INDEXES.clear()
        with monkeypatch.context() as limited:
            limited.setattr(texts, name, limit)
            answer = ask()
        assert answer.status_code == 422
        assert "download the artifact texts.jsonl" in answer.text


def test_a_table_does_not_wait_until_another_large_one_is_read(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a small table does, nor a large one that was read before."""
    texts.LARGE_INDEXES.clear()
    for small_bytes in (texts.SMALL_BYTES, 10):
        monkeypatch.setattr(texts, "SMALL_BYTES", small_bytes)
        if small_bytes == 10:
            ask()
        with texts.LARGE_INDEXES.beside, ThreadPoolExecutor(1) as pool:
            assert rows_of(pool.submit(ask).result(timeout=60)) == [*range(6)]


def table_of(folder: Path, name: str, rows: int) -> Path:
    """A table with a group for each row."""
    lines = [f'{{"row": {i}, "text": "a", "group": "{name}{i}", "pll": -1.0}}' for i in range(rows)]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_indexes_stay_in_memory_up_to_a_limit_of_bytes(tmp_path: Path) -> None:
    """The ones used last stay; one that exceeds the limit alone does not."""
    paths = [table_of(tmp_path, name, 100) for name in "abc"]
    first = texts.Indexes(2**20, nullcontext()).get(paths[0], "")
    kept = texts.Indexes(2 * first.size, nullcontext())
    first = kept.get(paths[0], "")
    kept.get(paths[1], "")
    assert kept.get(paths[0], "") is first
    kept.get(paths[2], "")
    assert kept.get(paths[0], "") is first
    assert len(kept) == 2
    assert len(kept.get(table_of(tmp_path, "large", 1000), "")) == 1000
    assert len(kept) == 0

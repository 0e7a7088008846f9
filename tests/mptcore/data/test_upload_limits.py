"""A file that declares too much is refused before it is decoded."""

import importlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptcore.data import upload_limits
from mptcore.data.inspect import look

arrow: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")

TABLE = np.arange(12, dtype=np.float64).reshape(4, 3)
FILES = ("x.npy", "x.npz", "x.csv", "x.parquet")


def written(path: Path) -> Path:
    match path.suffix:
        case ".npy":
            np.save(path, TABLE)
        case ".npz":
            np.savez(path, first=TABLE[:2], second=TABLE[2:])
        case ".csv":
            np.savetxt(path, TABLE[::-1] ** 2 % 7, delimiter=",")
        case _:
            parquet.write_table(arrow.table(dict(zip("abc", TABLE.T, strict=True))), path)
    return path


@pytest.mark.parametrize("name", FILES)
def test_the_cells_of_a_file_are_limited(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name)
    assert look(path, max_cells=12).problems == []
    (problem,) = look(path, max_cells=11).problems
    assert problem == "it declares 12 cells; at most 11 are read"


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.parquet"])
def test_too_large_files_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def decode(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("it is decoded")

    for module, function in ((np, "load"), (parquet, "read_table"), (parquet, "ParquetFile")):
        monkeypatch.setattr(module, function, decode)
    assert look(written(tmp_path / name), max_cells=11).problems


def header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    fields = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, fields)
    return file.getvalue()


def npz(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


HUGE = header((10**9, 10**3))
HALVES = {name: header((10**4, 10**4 + 1)) for name in ("a.npy", "b.npy")}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.npy", HUGE, "it declares 1000000000000 cells; at most 200000000 are read"),
        ("x.npz", npz({"a.npy": HUGE}), "it declares 1000000000000 cells; at most 200000000"),
        ("x.npz", npz(HALVES), "it declares 200020000 cells; at most 200000000 are read"),
        ("x.npz", npz({str(i): b"" for i in range(1001)}), "it declares 1001 arrays; at most 1000"),
    ],
)
def test_oversized_headers_are_refused(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (found,) = look(tmp_path / name).problems
    assert found.startswith(problem)


def test_the_bytes_of_cells_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size, problems in ((96, 0), (95, 1)):
        monkeypatch.setattr(upload_limits, "MAX_BYTES", size)
        assert len(look(written(tmp_path / "x.npy")).problems) == problems


def test_many_rows_in_few_bytes(tmp_path: Path) -> None:
    """Every row counts, even if it compresses well."""
    path = tmp_path / "x.parquet"
    column = arrow.repeat(arrow.scalar(1.5), 100_000)
    parquet.write_table(arrow.table({"a": column, "b": column}), path)
    assert path.stat().st_size < 10_000
    (problem,) = look(path, max_cells=199_999).problems
    assert problem == "it declares 200000 cells; at most 199999 are read"


def test_values_of_nested_columns_count(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table({"a": [[0.5] * 100] * 3}), path)
    assert look(path, max_cells=299).problems == ["it declares 300 cells; at most 299 are read"]
    (problem,) = look(path, max_cells=300).problems
    assert problem.startswith(
        "column a is not numbers: it has list<element: double>, such as '[0.5, "
    )


@pytest.mark.parametrize(
    ("limit", "most", "what"),
    [
        ("MAX_COLUMNS", 2, "3 columns"),
        ("MAX_ROW_GROUPS", 1, "2 row groups"),
        ("MAX_TEXT_ROWS", 3, "4 rows of text"),
    ],
)
def test_other_numbers_of_a_parquet_file_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, what: str
) -> None:
    path = tmp_path / "x.parquet"
    table = arrow.table({"a": [1, 2, 3, 4], "b": list("abcd"), "c": [0, 0, 0, 0]})
    parquet.write_table(table, path, row_group_size=2)
    assert upload_limits.excess(path) is None
    monkeypatch.setattr(upload_limits, limit, most)
    assert upload_limits.excess(path) == f"it declares {what}; at most {most} are read"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("x.csv", "a,b,c\n1,2,3\n4,5,7\n"),
        ("x.tsv", "a\tb\tc\n1\t2\t3\n4\t5\t7\n"),
        ("x.csv", '"a,a",b,c\n1,2,3\n4,5,7\n'),
        ("x.jsonl", '{"a": "x", "b": "y", "c": "z"}\n'),
    ],
)
def test_columns_of_text_files_are_limited_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str
) -> None:
    (tmp_path / file).write_text(content)
    monkeypatch.setattr(upload_limits, "MAX_COLUMNS", 3)
    assert look(tmp_path / file).problems == []
    monkeypatch.setattr(upload_limits, "MAX_COLUMNS", 2)
    (problem,) = look(tmp_path / file).problems
    assert problem.startswith("columns: the file has 3, at most 2 are read")


@pytest.mark.parametrize(
    ("limit", "what"),
    [("MAX_FOOTER_BYTES", "bytes of footer"), ("MAX_BYTES", "bytes of decompressed pages")],
)
def test_footer_and_pages_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, what: str
) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table({"a": ["one long text " * 100]}), path)
    monkeypatch.setattr(upload_limits, limit, 100)
    assert what in (upload_limits.excess(path) or "")


def test_a_column_that_is_not_numbers_is_not_decoded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table({"a": [1.0, 2.0], "b": [b"one", b"two"]}), path)
    monkeypatch.setattr(parquet, "read_table", None)
    (problem,) = look(path).problems
    assert problem.startswith("column b is not numbers: it has binary, such as \"b'one'\"")


@pytest.mark.parametrize("length", [10, 20_000])
def test_the_names_of_a_file_are_limited(tmp_path: Path, length: int) -> None:
    """The service keeps them, and sends them in an answer."""
    path = tmp_path / "x.npz"
    file = io.BytesIO()
    np.save(file, TABLE)
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(100):
            archive.writestr(f"{i:0{length}}", file.getvalue())
    found = look(path)
    if length == 10:
        assert (found.problems, len(found.arrays or {})) == ([], 100)
    else:
        (problem,) = found.problems
        assert problem.endswith("at most 1048576 are kept: shorten the names")
        assert found.arrays is None


def test_the_columns_of_an_array_with_missing_values_are_limited(tmp_path: Path) -> None:
    """They have no names, but are counted each."""
    path = tmp_path / "x.npy"
    array = np.ones((2, 150_000))
    array[0, 1:] = np.nan
    np.save(path, array)
    assert "those with missing values take" in look(path).problems[0]

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
HALVES = {name: header((5000, 5100)) for name in ("a.npy", "b.npy")}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.npy", HUGE, "it declares 1000000000000 cells; at most 200000000 are read"),
        ("x.npz", npz({"a.npy": HUGE}), "it declares 1000000000000 cells; at most 200000000"),
        ("x.npz", npz(HALVES), "it declares 51000000 cells, 408000000 bytes in memory"),
        ("x.npz", npz({str(i): b"" for i in range(1001)}), "it declares 1001 arrays; at most 1000"),
    ],
)
def test_oversized_headers_are_refused(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (found,) = look(tmp_path / name).problems
    assert found.startswith(problem)


SMALL_FILES = {
    "numbers": {"a": [1.5] * 50_000, "b": [1.5] * 50_000},
    "bytes": {"a": arrow.array([7] * 50_000, "uint8"), "b": arrow.array([7] * 50_000, "uint8")},
    "no values": {"a": arrow.nulls(50_000, "float64"), "b": arrow.nulls(50_000, "float64")},
    "text": {"a": ["x"] * 10_000},
    "long text": {"a": ["x" * 900_000]},
}
"""Tables of about a megabyte in memory, and of a few kilobytes as a file."""


@pytest.mark.parametrize("kind", SMALL_FILES)
def test_a_small_file_with_much_in_it_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A larger file with the same content may be read."""
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table(SMALL_FILES[kind]), path)
    monkeypatch.setattr(upload_limits, "MIN_DECODED_BYTES", 1_000_000)
    assert upload_limits.excess(path) is None
    monkeypatch.setattr(upload_limits, "MIN_DECODED_BYTES", 750_000)
    size = path.stat().st_size
    assert size < 60_000
    for reader in ("read_table", "ParquetFile"):
        monkeypatch.setattr(parquet, reader, None)
    (problem,) = look(path).problems
    assert f"at most 750000 are read from a file of {size} bytes" in problem
    with path.open("ab") as file:
        file.truncate(125_000)
    assert upload_limits.max_decoded_bytes(path) == 1_000_000


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_no_file_that_is_not_compressed_is_too_large(tmp_path: Path, dtype: str) -> None:
    """An array of the maximum number of cells, and the memory to convert it to float64."""
    path = tmp_path / "x.npy"
    cells = upload_limits.MAX_CELLS
    with path.open("wb") as file:
        fields = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (cells // 4, 4)}
        np.lib.format.write_array_header_2_0(file, fields)
        file.truncate(file.tell() + cells * np.dtype(dtype).itemsize)
    assert upload_limits.excess(path) is None
    both = cells * (8 + np.dtype(dtype).itemsize)
    assert 2**30 <= both <= upload_limits.memory_bytes(path) <= 4 * 2**30


@pytest.mark.parametrize("table", [{"a": [1.0, 2.0], "b": [2.0, 1.0]}, {"a": ["x", "y"]}])
def test_a_file_that_takes_too_much_memory_is_no_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: dict[str, list[Any]]
) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table(table), path)

    def too_large(*arguments: Any, **options: Any) -> Any:
        raise arrow.ArrowMemoryError("malloc failed")

    monkeypatch.setattr(parquet, "read_table", too_large)
    monkeypatch.setattr(parquet, "ParquetFile", too_large)
    with pytest.raises(MemoryError):
        look(path)


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


def test_the_footer_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table({"a": ["one long text " * 100]}), path)
    monkeypatch.setattr(upload_limits, "MAX_FOOTER_BYTES", 100)
    assert "bytes of footer" in (upload_limits.excess(path) or "")


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

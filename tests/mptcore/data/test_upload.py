"""Uploads: readable files, refused files, and a check that nothing is ever unpickled."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mptcore.data.files import error_text
from mptcore.data.inspect import look
from mptcore.data.table_columns import LEAVE_OUT
from mptcore.data.uploads import CELL_ADVICE, EMPTY_ADVICE, inspect, uploaded
from mptcore.protocol.records import RunError
from mptcore.specs import UploadData

TABLE = np.arange(12, dtype=np.float64).reshape(4, 3)


def written(folder: Path, name: str, array: Any = TABLE) -> Path:
    path = folder / name
    match path.suffix:
        case ".npy":
            np.save(path, array)
        case ".npz":
            np.savez(path, first=array, second=array * 2)
        case ".csv":
            np.savetxt(path, array, delimiter=",", header="a,b,c", comments="")
        case ".tsv":
            np.savetxt(path, array, delimiter="\t", header="a\tb\tc", comments="")
        case _:
            arrow: Any = importlib.import_module("pyarrow")
            table = arrow.table(dict(zip("abc", array.T, strict=True)))
            importlib.import_module("pyarrow.parquet").write_table(table, path)
    return path


FILES = ["data.npy", "data.npz", "data.csv", "data.tsv", "data.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_inspected_and_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "datasets" / "abc-1"
    folder.mkdir(parents=True)
    found = inspect(written(folder, name))
    assert (found.n, found.dim, found.problems) == (4, 3, [])
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    spec = UploadData(source="upload", dataset="abc-1", n=4, dim=3)
    assert np.array_equal(uploaded(spec).x, TABLE)
    written(folder, name, TABLE.astype(np.float32))
    assert uploaded(spec).x.dtype == np.float64


def test_columns_and_arrays_are_picked_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    for dataset, name in (("t", "data.csv"), ("z", "data.npz")):
        (tmp_path / "datasets" / dataset).mkdir(parents=True)
        written(tmp_path / "datasets" / dataset, name)
    columns = UploadData(source="upload", dataset="t", n=4, dim=2, columns=("c", "a"))
    assert np.array_equal(uploaded(columns).x, TABLE[:, [2, 0]])
    assert uploaded(columns).columns == ("c", "a")
    second = UploadData(source="upload", dataset="z", n=4, dim=3, array="second")
    assert np.array_equal(uploaded(second).x, 2 * TABLE)
    with pytest.raises(RunError, match="no column d"):
        uploaded(UploadData(source="upload", dataset="t", n=4, dim=2, columns=("d", "a")))
    with pytest.raises(RunError, match="has 4 observations of 3 dimensions"):
        uploaded(UploadData(source="upload", dataset="t", n=5, dim=3))
    with pytest.raises(RunError, match="may have been deleted"):
        uploaded(UploadData(source="upload", dataset="gone", n=5, dim=3))


def test_constant_columns_are_known(tmp_path: Path) -> None:
    table = np.where([True, False, True], TABLE[:1], TABLE)
    found = {name: inspect(written(tmp_path, name, table)).constant for name in FILES}
    assert found == {
        "data.npy": {"": ["0", "2"]},
        "data.npz": {"first": ["0", "2"], "second": ["0", "2"]},
        "data.csv": {"": ["a", "c"]},
        "data.tsv": {"": ["a", "c"]},
        "data.parquet": {"": ["a", "c"]},
    }
    assert inspect(written(tmp_path, "data.csv")).constant is None


@pytest.mark.parametrize(("name", "separator"), [("data.csv", ","), ("data.tsv", "\t")])
def test_a_text_file_needs_no_header(tmp_path: Path, name: str, separator: str) -> None:
    path = tmp_path / name
    np.savetxt(path, TABLE[::-1] ** 2 % 7, delimiter=separator)
    assert (inspect(path).n, inspect(path).dim) == (4, 3)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("data.npy", ["array[2, 1] is inf"]),
        ("data.npz", ["first[2, 1] is inf", CELL_ADVICE, "second[2, 1] is inf"]),
        ("data.csv", ["line 4, column b is inf"]),
        ("data.tsv", ["line 4, column b is inf"]),
        ("data.parquet", ["row 2, column b is inf"]),
    ],
)
def test_cells_that_are_not_numbers_are_named(name: str, told: list[str], tmp_path: Path) -> None:
    array = TABLE.copy()
    array[2, 1] = np.inf
    *named, cure = inspect(written(tmp_path, name, array)).problems
    assert named == told
    assert cure == CELL_ADVICE


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_the_wrong_extension_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x00\x01 this is no table \xff\n" * 20)
    found = inspect(path)
    assert found.problems
    assert found.n is None


@pytest.mark.parametrize(
    ("name", "other", "told"),
    [
        ("data.npy", "data.npz", "begins as .npz does; numpy.save writes one"),
        ("data.npz", "data.npy", "begins as .npy does; numpy.savez writes one"),
        ("data.csv", "data.parquet", "begins as .parquet does"),
        (
            "data.parquet",
            "data.csv",
            "begins with b'a,b,c\\n0.00000000'; DataFrame.to_parquet writes one",
        ),
    ],
)
def test_the_actual_format_of_a_wrong_file_is_named(
    name: str, other: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    path = written(tmp_path, other).rename(tmp_path / "other" / name)
    assert inspect(path).problems == [f"not a {path.suffix} file: it {told}"]
    path.write_bytes(b"")
    assert "mpty" in inspect(path).problems[0]


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize("name", ["data.npy", "data.npz"])
def test_nothing_is_unpickled(name: str, tmp_path: Path) -> None:
    array = np.array([[Bomb(), Bomb()]], dtype=object)
    assert "allow_pickle=False" in inspect(written_object(tmp_path / name, array)).problems[0]


def written_object(path: Path, array: Any) -> Path:
    if path.suffix == ".npy":
        np.save(path, array, allow_pickle=True)
    else:
        np.savez(path, first=array)
    return path


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros(3), "N observations × D dimensions"),
        (np.zeros((3, 1)), "D ≥ 2, not 3 × 1"),
        (np.zeros((0, 2)), "D ≥ 2, not 0 × 2"),
        (np.zeros((3, 2, 2)), "D ≥ 2, not 3 × 2 × 2"),
        (np.array(1.0), "D ≥ 2, not a single number"),
        (np.zeros((2, 2), dtype=complex), "real numbers, not complex128"),
        (np.array([["a", "b"]]), "real numbers"),
    ],
)
def test_files_without_a_table_of_numbers_are_refused(
    array: Any, says: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "data.npy", array)
    assert says in inspect(tmp_path / "data.npy").problems[0]


def test_one_observation_of_two_dimensions_is_a_table(tmp_path: Path) -> None:
    for kind in (np.float32, np.int16, np.bool_):
        np.save(tmp_path / "data.npy", np.zeros((1, 2), dtype=kind))
        found = inspect(tmp_path / "data.npy")
        assert (found.n, found.dim, found.problems) == (1, 2, [])


def test_some_of_many_bad_cells_are_named(tmp_path: Path) -> None:
    array = TABLE.copy()
    array[:2] = np.inf
    np.save(tmp_path / "data.npy", array)
    *named, rest, _ = inspect(tmp_path / "data.npy").problems
    assert named == [f"array[{place}] is inf" for place in ("0, 0", "0, 1", "0, 2", "1, 0", "1, 1")]
    assert rest == "and 1 cells more"


def test_text_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    for text, column in (
        ("a,b\n1,2\n3,four\n", "b is not numbers: line 3 is 'four'"),
        ("a,b\n1,\n3,four\n4,five\n5,6\n", "b is not numbers: line 3 is 'four', and 1 more"),
        ("1,2\n\n3,four\n", "f1 is not numbers: line 3 is 'four'"),
        ("a,b\n2,1_000\n", "b is not numbers: line 2 is '1_000'"),
        ("a,b\n2,1\n3,None\n", "b is not numbers: line 3 is 'None'"),
    ):
        path.write_text(text)
        assert inspect(path).problems == [f"column {column}. {LEAVE_OUT}"]
    path.write_text("a,b\n1,2\n\n3,\n-inf,4\n")
    *told, _ = inspect(path).problems
    assert told == ["line 5, column a is -inf"]


@pytest.mark.parametrize("name", FILES)
def test_missing_values_are_counted_and_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.stack([TABLE[:, 0], [np.nan, 5, 5, 5], [0, 1, np.nan, np.nan]], 1)
    (tmp_path / "datasets/a").mkdir(parents=True)
    found = inspect(written(tmp_path / "datasets/a", name, array))
    columns = ["b", "c"] if found.columns else ["1", "2"]
    arrays = ["first", "second"] if name == "data.npz" else [""]
    assert found.problems == []
    assert found.missing == {key: dict(zip(columns, [1, 2], strict=True)) for key in arrays}
    assert found.constant == dict.fromkeys(arrays, columns[:1])
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    spec = UploadData(source="upload", dataset="a", n=4, dim=3)
    assert np.array_equal(uploaded(spec).x, array, equal_nan=True)


def test_rows_and_columns_without_any_value_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "datasets/a").mkdir(parents=True)
    path = tmp_path / "datasets/a/data.csv"
    path.write_text("a,b,c\n1,,2\n,,\n3,,nan\n")
    told = ["line 3 has no value", "column b has no value", EMPTY_ADVICE]
    assert inspect(path).problems == told
    np.save(tmp_path / "data.npy", np.full((3, 4), np.nan))
    assert inspect(tmp_path / "data.npy").problems[-2:] == ["and 2 more", EMPTY_ADVICE]
    path.write_text("a,b,c\n1,,2\n,5,6\n3,4,nan\n")
    assert inspect(path).problems == []
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    chosen = UploadData(source="upload", dataset="a", n=3, dim=2, columns=("a", "b"))
    assert uploaded(chosen).x[0, 0] == 1
    path.write_text("a,b,c\n1,2,2\n,,6\n3,4,nan\n")
    with pytest.raises(RunError, match="row 1 has no value"):
        uploaded(chosen)


def test_errors_do_not_reveal_the_path_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    path.write_bytes(b"PAR1;")
    (told,) = inspect(path).problems
    assert told.startswith("not a readable .parquet file: ")
    assert error_text(path, OSError(f"{path} is cut off")) == "data.parquet is cut off"
    assert str(tmp_path) not in told
    assert "separated by commas" not in told


def test_missing_line_breaks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + "1.5,2.5 " * 400_000)
    assert "a line is longer than 1 MiB: line breaks are missing" in inspect(path).problems[0]


def test_numbers_and_text_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    table = pd.DataFrame({"a": [1.5, 2.5], "b": [0.5, 1.5], "text": ["one", "one"]})
    table.to_parquet(path)
    assert look(path).problems[0].startswith("column text is not numbers: it has large_string")
    table.drop(columns="a").to_parquet(path)
    assert (look(path).columns, look(path).dim) == (["text"], None)
    table.drop(columns="text").to_parquet(path)
    assert look(path).dim == 2


def test_the_command_prints_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mptcore.data.inspect"]
    root = Path(__file__).parents[3]
    good = subprocess.run([*command, written(tmp_path, "data.npz")], cwd=root, capture_output=True)
    assert good.returncode == 0
    found = json.loads(good.stdout)
    assert (found["format"], found["n"], found["dim"], found["problems"]) == ("npz", 4, 3, [])
    assert found["arrays"] == {"first": [4, 3], "second": [4, 3]}
    (tmp_path / "data.exe").touch()
    bad = subprocess.run([*command, tmp_path / "data.exe"], cwd=root, capture_output=True)
    assert bad.returncode == 1
    assert "not .exe" in json.loads(bad.stdout)["problems"][0]

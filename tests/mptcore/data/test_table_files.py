"""Tables: what a user sees in a file is what is read, and what is changed or left out is said."""

import decimal
import gzip
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mptcore.data.inspect import look
from mptcore.data.uploads import Inspection, uploaded
from mptcore.protocol.records import RunError
from mptcore.specs import UploadData
from mptcore.specs.vectors import TableOptions

arrow: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")
X = np.random.default_rng(3).normal(size=(12, 3)).round(4)
NAMES = ["a", "b", "c"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the upload "d"."""
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    path = tmp_path / "datasets" / "d"
    path.mkdir(parents=True)
    return path


def inspected(path: Path, text: str | bytes, **options: Any) -> Inspection:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return look(path, options=TableOptions(**options))


def problem(path: Path, text: str | bytes, **options: Any) -> str:
    (detail,) = inspected(path, text, **options).problems
    return detail


def read(path: Path, found: Inspection) -> np.ndarray[Any, Any]:
    """Return the numbers that a run reads of an inspected file."""
    assert found.problems == []
    assert found.n is not None
    assert found.dim is not None
    return uploaded(UploadData(source="upload", dataset="d", n=found.n, dim=found.dim)).x


def reading(found: Inspection, name: str) -> Any:
    return (found.reading or {}).get(name)


def lines(x: np.ndarray[Any, Any], header: str = "", separator: str = ",") -> str:
    rows = [separator.join(map(str, row)) for row in x.tolist()]
    return "\n".join([header, *rows] if header else rows) + "\n"


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf", b"\n\n"])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_a_header_of_numbers_is_no_observation(folder: Path, begin: bytes, ends: bytes) -> None:
    path = folder / "data.csv"
    content = begin + lines(X, "1000,1100,1200").encode()
    found = inspected(path, content.replace(b"\n", ends))
    assert (found.n, found.columns) == (12, ["1000", "1100", "1200"])
    assert reading(found, "header") is True
    assert np.array_equal(read(path, found), X)


def test_options_decide_about_the_header(folder: Path) -> None:
    path, text = folder / "data.csv", "2019,2020,2021\n4,1,9\n"
    assert "may be the names of the columns or data" in problem(path, text)
    assert inspected(path, text, header=True).n == 1
    found = inspected(path, text, header=False)
    assert (found.n, found.columns) == (2, ["f0", "f1", "f2"])
    (folder / "reading.json").write_text('{"header": false}')
    assert read(path, found)[0].tolist() == [2019, 2020, 2021]


def test_equal_names_are_refused(folder: Path) -> None:
    path = folder / "data.csv"
    assert problem(path, "id,a,a,b\n1,2,3,4\n", index=["id"]) == (
        "several columns have the same name: 'a'; rename them"
    )
    assert "same name: 'a'" in problem(path, "a, a ,b\n2,3,4\n")


def test_ids_and_columns_that_are_no_numbers(folder: Path) -> None:
    path = folder / "data.csv"
    text = "id,batch,day,a,b\n007,x,2020-01-01,1.5,2\n010,x,2020-01-01,0.25,4\n"
    refused = problem(path, text)
    assert "column batch is not numbers: line 2 is 'x', and 1 more; column day" in refused
    assert "--index NAME" in refused
    assert "--drop-non-numeric" in refused
    found = inspected(path, text, index=["id", "batch"], drop_non_numeric=True)
    assert found.columns == ["a", "b"]
    assert reading(found, "ids") == ["id", "batch"]
    assert reading(found, "left_out") == {"day": "not numbers: line 2 is '2020-01-01', and 1 more"}
    (folder / "reading.json").write_text('{"index": ["id", "batch"], "drop_non_numeric": true}')
    upload = uploaded(UploadData(source="upload", dataset="d", n=2, dim=2))
    assert upload.x.tolist() == [[1.5, 2], [0.25, 4]]
    assert upload.ids == {"id": ["007", "010"], "batch": ["x", "x"]}
    assert "it has no column ids; it has id, batch" in problem(path, text, index=["ids"])


def test_cells_with_blanks_commas_and_groups_of_digits(folder: Path) -> None:
    path = folder / "data.csv"
    assert read(path, inspected(path, "a,b\n 1.5, NA\n2,  \n,3\n")).tolist()[0][0] == 1.5
    assert inspected(path, "a,b\n 1.5, NA\n2,  \n,3\n").missing == {"": {"a": 1, "b": 2}}
    text = "a;b\n1.234,5;2\n-7,25;1.000\n"
    assert "give --sep ';', and --decimal ','" in problem(path, text)
    assert "line 2 is '1.234,5', and 1 more (for decimal commas" in problem(path, text, sep=";")
    options: Any = {"sep": ";", "decimal": ",", "thousands": "."}
    found = inspected(path, text, **options)
    (folder / "reading.json").write_text('{"sep": ";", "decimal": ",", "thousands": "."}')
    assert read(path, found).tolist() == [[1234.5, 2], [-7.25, 1000]]
    (folder / "reading.json").unlink()
    for grouped in ('"1,234"', '"-12,345,678.5"'):
        found = inspected(path, f"a,b\n{grouped},2\n", thousands=",")
        (folder / "reading.json").write_text('{"thousands": ","}')
        assert read(path, found)[0, 0] == float(grouped.strip('"').replace(",", ""))
    assert "line 2 is '1,23'" in problem(path, 'a,b\n"1,23",2\n', thousands=",")
    assert "line 2 is '1.5'" in problem(path, "a;b\n1.5;2\n", sep=";", decimal=",")


def test_decimal_commas_in_quotes_and_other_blanks(folder: Path) -> None:
    path = folder / "data.csv"
    found = inspected(path, 'a,b\n"1,5",2\n"0,25","3,5"\n', decimal=",")
    (folder / "reading.json").write_text('{"decimal": ","}')
    assert read(path, found).tolist() == [[1.5, 2], [0.25, 3.5]]
    for blank in ("\u00a0", "\u202f", " "):
        found = inspected(path, f"a;b\n1{blank}234;2\n5;6\n", sep=";", thousands=" ")
        (folder / "reading.json").write_text('{"sep": ";", "thousands": " "}')
        assert read(path, found)[0, 0] == 1234


def test_other_separators(folder: Path) -> None:
    path = folder / "data.csv"
    for separator, name in (("\t", "tab"), ("|", "|"), (";", ";")):
        text = lines(X, separator.join(NAMES), separator)
        assert f"give --sep {name!r}".replace("'tab'", "tab") in problem(path, text)
        found = inspected(path, text, sep=name)
        (folder / "reading.json").write_text(TableOptions(sep=name).model_dump_json())  # type: ignore[arg-type]
        assert np.array_equal(read(path, found), X)


def test_commas_at_the_ends_of_lines(folder: Path) -> None:
    path = folder / "data.csv"
    for text in ("a,b,,\n1,2,,\n3,4,,\n", "1.5,0.2,\n0.4,1.1,\n"):
        found = inspected(path, text)
        assert (found.n, found.dim) == (2, 2)
        assert {*reading(found, "left_out").values()} == {"it has no name and no value"}
    assert problem(path, "a,b\n1,2,\n").startswith("line 2 has 3 cells, the first line 2: '1,2,'")
    assert "column 3 has no name: name it" in problem(path, "a,b,\n1,2,5\n")


def test_hexadecimal_cells_are_no_numbers(folder: Path) -> None:
    path = folder / "data.csv"
    assert "line 3 is '0x10'" in problem(path, "a,b\n5,1.5\n0x10,2\n")
    assert inspected(path, "a,b,c\n5,1.5,8\n0x10,2,9\n", drop_non_numeric=True).columns == [
        "b",
        "c",
    ]


def test_quotes_around_names_of_numbers(folder: Path) -> None:
    """Missing values are in quotes too where Python's csv quotes all that is no number."""
    path = folder / "data.csv"
    assert inspected(path, '"2019","2020"\n1,2\n"",4\n3,""\n').columns == ["2019", "2020"]
    assert "may be the names" in problem(path, '"Smith, John",1.5,2.5\nBob,1.25,2.75\n')


def test_lines_above_and_below_a_table_are_refused(folder: Path) -> None:
    path = folder / "data.csv"
    assert "remove titles and comments" in problem(path, "# made today\na;b\n1,5;2\n")
    assert "Excel" in problem(path, "sep=;\na;b\n1,5;2\n", sep=";")
    for text in ('[{"a": 1}]\n', "<html>\n", '{"a": [1]}\n'):
        assert "JSON, HTML or XML" in problem(path, text)
    assert "line 4 has 1 cells" in problem(path, "a,b\n1,2\n3,4\nend\n")
    assert problem(path, "a,b\n1,2\n  \n3,4\n") == "line 3 has blanks only: remove it"
    assert "save a spreadsheet as .csv" in problem(path, b"PK\x03\x04" + bytes(30))


def test_names_with_line_breaks(folder: Path) -> None:
    path = folder / "data.csv"
    found = inspected(path, lines(X, '"long\nname",b,"with, comma"'))
    assert found.columns == ["long name", "b", "with, comma"]
    assert np.array_equal(read(path, found), X)
    bad = lines(X, '"long\nname",b,c').replace(str(X[2, 0]), "x")
    assert "column long name is not numbers: line 5 is 'x'" in problem(path, bad)


def test_the_first_of_the_rows_with_an_odd_cell_is_not_a_header(folder: Path) -> None:
    """It was, with no word but that the first line has the names."""
    path = folder / "data.csv"
    for cell in ("?", "-", ".", "None", "NAN", "1..2", "<0.1", "\u2212", '"1,234"', "inf", "n.d."):
        text = f"5.1,{cell},0.2\n0.5,0.25,7\n1.5,2,0.125\n"
        assert "may be the names" in problem(path, text)
        assert inspected(path, text, header=True).n == 2
    assert "may be the names" in problem(path, "age,0.25,7.5\n0.5,0.25,0.5\n")
    found = inspected(path, "true,false\nfalse,false\ntrue,true\n")
    assert (found.n, read(path, found).tolist()[0]) == (3, [1, 0])


def test_whole_numbers_that_float64_rounds_are_said(folder: Path) -> None:
    path = folder / "data.csv"
    for cell in ("9007199254740993", "123456789012345678901234"):
        found = inspected(path, f"a,b\n{cell},2\n4,3\n")
        (note,) = reading(found, "warnings")
        assert note == (
            "column a: whole numbers beyond 2^53 are rounded to float64, such as line 2, " + cell
        )
        assert read(path, found)[0, 0] == float(cell)
    for exact in ("9007199254740992", "1e300", "36028797018963968"):
        found = inspected(path, f"a,b\n{exact},2\n4,3\n")
        assert reading(found, "warnings") is None
    path.unlink()
    np.save(folder / "data.npy", np.eye(3, dtype=bool))
    assert reading(look(folder / "data.npy"), "warnings") == ["true and false are read as 1 and 0"]
    np.save(folder / "data.npy", np.array([[1, 2**60 + 1], [2, 5]]))
    found = look(folder / "data.npy")
    assert "array[0, 1], 1152921504606846977" in reading(found, "warnings")[0]


def test_values_beyond_float64_are_refused(folder: Path) -> None:
    path = folder / "data.npy"
    np.save(path, np.array([["1", "2"], ["1e4000", "3"]]).astype(np.longdouble))
    assert look(path).problems == [
        "array[1, 0] is 1e+4000: numbers are at most 1.8e308, the largest of float64"
    ]
    assert "column a is inf" in inspected(folder / "data.csv", "a,b\n1e400,2\n").problems[0]


def test_files_in_other_encodings_are_named(folder: Path) -> None:
    path = folder / "data.csv"
    assert problem(path, gzip.compress(b"a,b\n1,2\n")) == (
        "it is compressed (gzip): upload the decompressed file"
    )
    assert problem(path, "a,b\n1,2\n".encode("utf-16")) == "it is UTF-16 text: save it as UTF-8"
    assert "not UTF-8 text" in problem(path, "é,b\n1,2\n".encode("latin-1"))


def test_line_breaks_in_cells(folder: Path) -> None:
    path = folder / "data.csv"
    text = 'id,a,b\n"one\ntwo",1.5,2\nthree,0.5,4\n'
    found = inspected(path, text, index=["id"])
    (folder / "reading.json").write_text('{"index": ["id"]}')
    assert read(path, found).tolist() == [[1.5, 2], [0.5, 4]]
    assert reading(found, "warnings") == [
        "cells in quotes have line breaks: 3 lines are read as 2 rows"
    ]
    bad = problem(path, text.replace("0.5", "half"), index=["id"])
    assert "row 1 (counted from 0) is 'half'" in bad


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_the_index_of_a_pandas_table_is_the_id(folder: Path, name: str, labels: bool) -> None:
    table = pd.DataFrame(X, columns=NAMES).sample(frac=1, random_state=1)
    if labels:
        table.index = pd.Index([f"s{i}" for i in range(12)])
    if name == "data.csv":
        table.to_csv(folder / name)
    else:
        table.to_parquet(folder / name)
    found = look(folder / name)
    assert (found.columns, len(reading(found, "ids"))) == (NAMES, 1)
    upload = uploaded(UploadData(source="upload", dataset="d", n=12, dim=3))
    assert np.array_equal(upload.x, table.to_numpy())
    assert upload.ids is not None
    assert [*upload.ids.values()] == [[*map(str, table.index)]]


@pytest.mark.parametrize("metadata", [b"{", b"[" * 100_000, b"5", b'{"index_columns": 5}', b"null"])
def test_other_metadata_of_pandas_are_ignored(folder: Path, metadata: bytes) -> None:
    table = arrow.table({"a": [1.5, 2.5], "b": [0.5, 4.5]})
    parquet.write_table(
        table.replace_schema_metadata({b"pandas": metadata}), folder / "data.parquet"
    )
    assert look(folder / "data.parquet").columns == ["a", "b"]


def test_long_ids_are_refused(folder: Path) -> None:
    """A run keeps them in memory; a file of some kilobytes may hold gigabytes of them."""
    path = folder / "data.csv"
    assert inspected(path, f"id,a,b\n{'x' * 1000},1.5,2\n", index=["id"]).problems == []
    refused = problem(path, f"id,a,b\n{'x' * 1001},1.5,2\n", index=["id"])
    assert refused.startswith("column id: ids take at most 1000 bytes each and 256 MiB in all")
    assert inspected(path, f"id,a,b\n{'x' * 1001},1.5,2\n", drop_non_numeric=True).dim == 2


def test_levels_of_an_index_without_metadata(folder: Path) -> None:
    names = ["__index_level_0__", "__index_level_1__", "a", "b"]
    table = arrow.table(dict(zip(names, [[1, 1], ["x", "y"], [1.5, 2], [0.5, 4]], strict=True)))
    parquet.write_table(table, folder / "data.parquet")
    found = look(folder / "data.parquet", options=TableOptions(drop_non_numeric=True))
    assert (found.columns, reading(found, "ids")) == (["a", "b"], ["index", "__index_level_1__"])


def test_quotes_that_a_separator_needs_are_no_sign_of_names(folder: Path) -> None:
    path = folder / "data.csv"
    text = '"1,234","2,345","1,001"\n999,2,3\n4,5,6\n'
    assert inspected(path, text, thousands=",").n == 3
    assert "may be" in problem(
        path, '"2019","2020","2021"\n1,2,3\n' + "4,5,6\n" * 200 + '"7",8,9\n'
    )


def test_names_in_brackets_and_several_arrays(folder: Path) -> None:
    assert inspected(folder / "data.csv", "[Na+],[K+]\n1.5,2\n").columns == ["[Na+]", "[K+]"]
    (folder / "data.csv").unlink()
    with (folder / "data.npy").open("wb") as file:
        np.save(file, X)
        np.save(file, X)
    assert look(folder / "data.npy").problems == [
        "it goes on after its first array: use .npz for several"
    ]


def test_an_id_that_is_named_settles_the_header(folder: Path) -> None:
    path = folder / "data.csv"
    for text in ("Well,450,620\nA01,0.5,0.25\nA02,0.5,0.75\n", "<>,1,2\nA,120,110\nB,20,11\n"):
        name = text.split(",")[0]
        found = inspected(path, text, index=[name])
        assert (found.n, found.columns) == (2, text.split("\n")[0].split(",")[1:])


def test_empty_rows_at_the_end_are_left_out(folder: Path) -> None:
    path = folder / "data.csv"
    for text in ("a,b,c\n1,2.5,3\n4,5,6\n,,\n,,\n", "a,b,c\n1,2.5,3\n4,5,6\n,,\n\n,,\n"):
        found = inspected(path, text)
        assert read(path, found).tolist() == [[1, 2.5, 3], [4, 5, 6]]
        assert reading(found, "warnings") == ["2 empty rows at the end are left out"]
    assert "line 3 has no value" in inspected(path, "a,b\n1,2\n,\n3,4\n").problems
    path = folder / "data.tsv"
    assert "empty cells only" in problem(path, "\t\t\n1\t2\t3\n", header=False)


def test_groups_of_digits_do_not_begin_with_zero(folder: Path) -> None:
    path = folder / "data.csv"
    options: Any = {"sep": ";", "decimal": ",", "thousands": "."}
    assert "line 2 is '0.123'" in problem(path, "a;b\n0.123;1,5\n1.234;2,5\n", **options)
    found = inspected(path, "a;b\n1’234;2\n5;6\n", sep=";", thousands="'")
    assert found.problems == []


def test_cells_in_capitals_are_missing_too(folder: Path) -> None:
    path = folder / "data.csv"
    text = "1.5,2.5,NAN\nNAN,NAN,3.5\nNAN,4.5,NAN\n6.5,NAN,NAN\nNAN,NAN,7.5\n"
    assert inspected(path, text, header=False).n == 5
    assert "may be the names" in problem(path, text)


def test_words_beside_what_is_read(folder: Path) -> None:
    path = folder / "data.csv"
    found = inspected(path, "site,a,b\n,1,2\nx,3.5,4.5\n", index=["site"])
    assert reading(found, "warnings") == [
        "the first row has no id in site: is it a second line of names?"
    ]
    assert "row names, as R's write.table" in problem(path, "a,b\n1,2.5,3\n2,3.5,4\n")
    assert "not by blanks" in problem(path, "1.0 2.0 3.5\n4.0 5.0 6.5\n")
    assert "B is left out" not in problem(path, "g,a,b\nA,1,2\nB,x,4\n", drop_non_numeric=True)
    refused = problem(path, "g,a,b\nA,1,2\nB,x,4\n", drop_non_numeric=True)
    assert refused.startswith("it has 1 columns of numbers, and needs two; g is left out: not num")


def test_ids_stand_on_one_line(folder: Path) -> None:
    inspected(folder / "data.csv", 'id,a,b\n"one\r\ntwo",1.5,2\n"x\ty",0.5,4\n', index=["id"])
    (folder / "reading.json").write_text('{"index": ["id"]}')
    upload = uploaded(UploadData(source="upload", dataset="d", n=2, dim=2))
    assert upload.ids == {"id": ["one two", "x y"]}


def test_numbers_of_many_digits(folder: Path) -> None:
    path = folder / "data.csv"
    assert "column a is inf" in inspected(path, f"a,b\n{'9' * 400},2\n").problems[0]
    assert "column a is inf" in inspected(path, "a,b\n1e1000000000000000000000,2\n").problems[0]
    assert "may be the names" in problem(path, f"{'9' * 5000},2\n3,4\n")


def test_many_columns_of_text_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv: Any = importlib.import_module("pyarrow.csv")
    reads = 0
    read_csv = csv.read_csv

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return read_csv(*arguments, **options)

    monkeypatch.setattr(csv, "read_csv", counted)
    names = [f"c{i}" for i in range(300)]
    cells = ["2020-01-01" if i % 3 else " NA" for i in range(300)]
    text = f"{','.join(names)},a,b\n" + f"{','.join(cells)},1.5,2.5\n" * 2
    found = inspected(folder / "data.csv", text, drop_non_numeric=True)
    assert found.columns == ["a", "b"]
    assert reading(found, "left_out")["c0"] == "it has no value"
    assert reads <= 3


def test_an_unnamed_column_of_measurements_is_refused(folder: Path) -> None:
    table = pd.DataFrame({"Unnamed: 0": [1.5, 1.5], "b": [2.5, 3], "c": [1.5, 2]})
    table.to_parquet(folder / "data.parquet", index=False)
    assert "Unnamed: 0 has no name" in look(folder / "data.parquet").problems[0]
    table["Unnamed: 0"] = [7, 3]
    table.to_parquet(folder / "data.parquet", index=False)
    found = look(folder / "data.parquet")
    assert (found.columns, reading(found, "ids")) == (["b", "c"], ["index"])
    (folder / "data.parquet").unlink()
    path = folder / "data.csv"
    for text in (",b,c\n1.5,2,3\n1.5,4,5\n", ",b,c\n1,2,3\n1,4,5\n"):
        assert "column 1 has no name: name it, make it an id by --index 'column 1'" in problem(
            path, text
        )
        assert inspected(path, text, index=["column 1"]).columns == ["b", "c"]


def test_an_index_that_was_saved_twice(folder: Path) -> None:
    found = inspected(folder / "data.csv", ",Unnamed: 0,a,b\n0,7,1.5,2\n1,3,0.5,4\n")
    assert (found.columns, reading(found, "ids")) == (["a", "b"], ["index", "Unnamed: 0"])
    text = "column 2,,a,b\n0,,1.5,2\n1,,0.5,4\n"
    assert inspected(folder / "data.csv", text).columns == ["column 2", "a", "b"]


def test_columns_of_other_words_in_each_row_are_ids(folder: Path) -> None:
    path = folder / "data.csv"
    text = "sample,day,a,b\nS-1, 2020-01-01,1.5,2\nä 2,2020-01-02,0.25,4\n"
    found = inspected(path, text)
    assert (found.columns, reading(found, "ids")) == (["a", "b"], ["sample", "day"])
    left_out = inspected(path, text, drop_non_numeric=True)
    assert (reading(left_out, "ids"), [*reading(left_out, "left_out")]) == (None, ["sample", "day"])
    assert "column day is not numbers" in problem(path, text, index=["sample"])


@pytest.mark.parametrize(
    "cells",
    ["S,S", "S,", "S,2", "1.5 mg,2.5 mg", "<0.1,<0.2", "1-2,2-3", "01.02.2020,02.02.2020"],
)
def test_other_columns_are_no_ids(folder: Path, cells: str) -> None:
    first, second = cells.split(",")
    text = f"sample,a,b\n{first},1.5,2\n{second},0.25,4\n"
    path = folder / "data.csv"
    assert "column sample is not numbers" in problem(path, text)
    text = f"a,b,sample\n1.5,2,{first}\n0.25,4,{second}\n"
    assert "column sample is not numbers" in problem(path, text)


def test_a_column_of_words_in_parquet_is_ids(folder: Path) -> None:
    path = folder / "data.parquet"
    table = pd.DataFrame(X, columns=NAMES)
    table["sample"] = [f"s{i}" for i in range(len(X))]
    table.to_parquet(path)
    assert reading(look(path), "ids") == ["sample"]
    table.loc[3, "sample"] = None
    table.to_parquet(path)
    assert "column sample is not numbers" in look(path).problems[0]


def test_named_index_and_kinds_of_columns_of_parquet(folder: Path) -> None:
    path = folder / "data.parquet"
    table = pd.DataFrame(X, columns=NAMES)
    table.index = pd.Index(np.arange(12) * 1.5, name="time")
    table["flag"] = [True, False] * 6
    table["price"] = [decimal.Decimal("1.25")] * 12
    table["grade"] = pd.Categorical([1, 2, 3] * 4)
    table["kind"] = pd.Categorical(["x", "y"] * 6)
    table["day"] = pd.Timestamp("2020-01-01")
    table.to_parquet(path)
    refused = look(path).problems[0]
    assert "column kind is not numbers" in refused
    assert "column day is not numbers" in refused
    found = look(path, options=TableOptions(drop_non_numeric=True))
    assert found.columns == [*NAMES, "flag", "price", "grade"]
    assert reading(found, "ids") == ["time"]
    assert [*reading(found, "left_out")] == ["kind", "day"]
    assert reading(found, "warnings")[0] == "column flag: true and false are read as 1 and 0"
    (folder / "reading.json").write_text('{"drop_non_numeric": true}')
    table["list"] = [[1.5]] * 12
    table.to_parquet(path)
    options = TableOptions(drop_non_numeric=True, index=("list",))
    assert look(path, options=options).problems == [
        "column list cannot be an id: it has list<element: double>"
    ]
    table.drop(columns="list").to_parquet(path)
    x = read(path, found)
    assert x[:2, 3:].tolist() == [[1, 1.25, 1], [0, 1.25, 2]]


def test_labels_beside_the_array_of_an_archive(folder: Path) -> None:
    path = folder / "data.npz"
    np.savez(path, X=X, y=np.arange(12), bad=np.full((12, 2), np.inf))
    found = look(path)
    assert (found.n, found.dim, found.arrays) == (12, 3, {"X": [12, 3]})
    assert reading(found, "left_out") == {
        "y": "an array is N observations × D dimensions, D ≥ 2, not 12",
        "bad": "bad[0, 0] is inf; bad[0, 1] is inf; bad[1, 0] is inf; bad[1, 1] is inf; "
        "bad[2, 0] is inf; and 19 cells more; every cell is a finite number, or empty or NaN "
        "where a value is missing",
    }
    chosen = UploadData(source="upload", dataset="d", n=12, dim=3, array="X")
    assert np.array_equal(uploaded(chosen).x, X)
    with pytest.raises(RunError, match="its array y cannot be used: an array is N observations"):
        uploaded(chosen.model_copy(update={"array": "y"}))
    np.savez(path, y=np.arange(12))
    assert look(path).problems == [
        "the archive has no array that can be used: y: an array is N observations × D dimensions, "
        "D ≥ 2, not 12"
    ]


def test_suspicious_rows_and_columns_are_said(folder: Path) -> None:
    x = np.column_stack([X, np.arange(12) + 5, np.eye(12)[4] + 2.5])
    x = np.vstack([x, x[3:5]])
    found = inspected(folder / "data.csv", lines(x, "a,b,c,d,e"))
    assert reading(found, "warnings") == ["2 rows are exact copies of earlier ones, first line 14"]
    found = inspected(folder / "data.csv", lines(x[:12], "a,b,c,d,e"))
    counts, same = reading(found, "warnings")
    assert counts.startswith("column(s) d count 1, 2, 3, …")
    assert same == "column(s) e have the same value in all rows but one"
    found = inspected(folder / "data.csv", lines(X, "a,b,c"))
    assert reading(found, "warnings") is None


def test_equal_rows_with_missing_values(folder: Path) -> None:
    found = inspected(folder / "data.csv", "a,b\n1.5,\n2,0\n1.5,\n2,-0.0\n1.5,3\n")
    assert reading(found, "warnings") == ["2 rows are exact copies of earlier ones, first line 4"]

"""Texts from the spec, from files, from uploads and from GLUE: accepted and refused ones."""

import hashlib
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mptcore.data.inspect import look, main
from mptcore.data.texts import Rows, columns, texts
from mptcore.data.uploads import Inspection
from mptcore.families.masked_lm.corpus import chosen_rows
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.specs import GlueText, PlainText

MRPC = GlueText(source="glue", subset="mrpc", split="validation")
PAIRS = [("one", "two"), ("lacks", ""), ("", "lacks"), ("three", "four")]
NAMES = ("sentence1", "sentence2", "label", "idx")
ROWS = [("one", "two", 1, 0), ("lacks", None, 1, 1), ("", "lacks", 0, 2), ("three", "four", 0, 3)]
"""Rows in the form of GLUE; two of them lack one of their texts."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MPT_DATA_DIR and MPT_STORE."""
    for name in ("text", "glue/mrpc", "datasets/abc"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    inputs.locate(None)
    return tmp_path


def plain(**where: Any) -> PlainText:
    return PlainText.model_validate({"source": "text", **where})


def refused(spec: PlainText | GlueText) -> str:
    with pytest.raises(RunError) as error:
        texts(spec)
    assert error.value.cause == "invalid"
    return str(error.value)


def written(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".jsonl":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        arrow: Any = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.parquet").write_table(arrow.table(columns), path)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_of_the_data_folder_is_read_by_its_name(folder: Path) -> None:
    (folder / "text" / "a.txt").write_text("one\n\n  \nzwei – drei\u2028vier\n")
    assert texts(plain(file="a.txt")) == [("one",), ("zwei – drei\u2028vier",)]
    digest = sha256((folder / "text" / "a.txt").read_bytes())
    assert inputs.used() == {"MPT_DATA_DIR/text/a.txt": digest}
    assert refused(plain(file="b.txt")) == "there is no text b.txt in the folder MPT_DATA_DIR/text"


def test_byte_order_marks_are_left_out(folder: Path) -> None:
    """Also those within a file that was joined from several."""
    mark, rows = "\ufeff", '{"text": "one"}\r\n'
    contents = {
        "a.txt": f"{mark}one\r\n{mark}two\ufeff\r\n",
        "a.jsonl": f'{mark}{rows}{mark}{{"text": "two\ufeff"}}',
        "a.csv": f"{mark}text,n\r\none,1\r\ntwo\ufeff,2\r\n",
    }
    for name, content in contents.items():
        (folder / "text" / name).write_bytes(content.encode())
        assert texts(plain(file=name)) == [("one",), ("two\ufeff",)]
    assert texts(plain(lines=[f"{mark}one", "two\ufeff"])) == [("one",), ("two\ufeff",)]


def test_a_named_file_needs_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPT_DATA_DIR", raising=False)
    told = "MPT_DATA_DIR, the folder that holds texts, is not set"
    assert refused(plain(file="a.txt")) == told


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_column_of_an_upload_is_read_where_it_has_text(folder: Path, suffix: str) -> None:
    columns: dict[str, list[Any]] = {
        "text": ["one", None, "", "two"],
        "other": ["x"] * 4,
        "score": [1, 2, 3, 4],
    }
    written(folder / "datasets" / "abc" / f"data.{suffix}", columns)
    assert texts(plain(dataset="abc")) == [("one",), ("",), ("",), ("two",)]
    assert texts(plain(dataset="abc", column="other")) == [("x",)] * 4
    told = "the upload abc cannot be used: it has no column of text score; it has text, other"
    assert refused(plain(dataset="abc", column="score")) == told


def test_a_second_column_gives_texts_of_their_own(folder: Path) -> None:
    """The files of BLiMP are such. Other columns are those of both texts of a row."""
    rows: dict[str, list[Any]] = {
        "good": ["a", "c", None, "e"],
        "bad": ["b", "d", "x", ""],
        "pair": [1, 2, 3, 4],
    }
    written(folder / "text" / "pairs.jsonl", rows)
    spec = plain(file="pairs.jsonl", column="good", second_column="bad")
    rows_of_two = [("a",), ("b",), ("c",), ("d",), ("",), ("x",), ("e",), ("",)]
    assert texts(spec) == rows_of_two
    assert columns(spec, ["pair"]) == [(1,), (1,), (2,), (2,), (3,), (3,), (4,), (4,)]
    assert chosen_rows(spec, rows_of_two) == [0, 1, 2, 3]
    assert spec.problems() == []
    assert [one.pointer for one in spec.model_copy(update={"n": 3}).problems()] == ["/data/n"]
    for seed in range(9):
        places = chosen_rows(spec.model_copy(update={"n": 2, "seed": seed}), rows_of_two)
        assert places in ([0, 1], [2, 3])
    (folder / "text" / "lines.txt").write_text("a\n")
    unnamed = plain(file="lines.txt", second_column="bad")
    assert "a .txt file has no columns" in refused(unnamed)
    for wrong in (
        unnamed,
        plain(lines=["a"], second_column="b"),
        plain(file="a.jsonl", second_column="text"),
    ):
        assert [one.pointer for one in wrong.problems()] == ["/data/second_column"]


def test_a_csv_file_has_columns_of_text_and_of_numbers(folder: Path) -> None:
    table = 'mutant,score,note\n"A2G, twice",0.5,\nK1A,-2,"a ""b""\nc"\n,3,d\n'
    (folder / "text" / "a.csv").write_text(table)
    spec = plain(file="a.csv", column="mutant")
    assert spec.has_columns
    assert texts(spec) == [("A2G, twice",), ("K1A",), ("",)]
    assert columns(spec, ["score", "note"]) == [(0.5, ""), (-2.0, 'a "b"\nc'), (3.0, "d")]


def test_an_empty_line_of_a_table_of_one_column_is_a_row(folder: Path) -> None:
    (folder / "text" / "a.csv").write_text("text\none\n\ntwo\n")
    assert texts(plain(file="a.csv")) == [("one",), ("",), ("two",)]
    (folder / "text" / "a.csv").write_text("text,n\none,1\n\ntwo,2\n")
    assert texts(plain(file="a.csv")) == [("one",), ("two",)]


def test_a_column_of_categories_is_text(folder: Path) -> None:
    """The form in which pandas writes it."""
    arrow: Any = importlib.import_module("pyarrow")
    column = arrow.array(["one", None, "one"]).dictionary_encode()
    importlib.import_module("pyarrow.parquet").write_table(
        arrow.table({"text": column}), folder / "text" / "a.parquet"
    )
    assert texts(plain(file="a.parquet")) == [("one",), ("",), ("one",)]
    assert look(folder / "text" / "a.parquet").problems == []


def test_an_upload_of_another_kind_is_refused(folder: Path) -> None:
    told = refused(plain(dataset="gone"))
    assert told.startswith("the upload gone cannot be used: the store has no file of it")
    (folder / "datasets" / "abc" / "data.csv").write_text("a,b\n1,2\n")
    told = "the upload abc cannot be used: it is csv, not one of txt, jsonl, parquet"
    assert refused(plain(dataset="abc")) == told


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", b"\n \n", "it has no text in it"),
        ("a.txt", b"\xff\xfe", "it is not UTF-8 text: 'utf-8' codec can't decode byte 0xff"),
        ("a.jsonl", b'{"text": 1}\n', "none of its columns holds text"),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', "line 2 is not a JSON object"),
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', "line 2 is not JSON: "),
        ("a.parquet", b"PAR1;", "not a readable .parquet file: "),
        ("a.csv", b"text\n1\n", "none of its columns holds text"),
        ("a.csv", b"text\none\ntwo,2\n", "not a readable .csv file: "),
        ("a.csv", b"text,n\n\xff,2\n", "column text is not UTF-8 text"),
        ("a.csv", b"text,text\na,b\n", "several of its columns have the same name"),
        ("a.csv", b"", "not a readable .csv file: "),
        ("a.tsv", b"text\none\n", "text is in .txt, .jsonl, .csv or .parquet files, not .tsv"),
    ],
)
def test_a_file_without_text_is_refused(folder: Path, name: str, content: bytes, told: str) -> None:
    (folder / "text" / name).write_bytes(content)
    spec = PlainText.model_construct(source="text", file=name, column="text", lines=None)
    assert refused(spec).startswith(f"the text {name} cannot be used: {told}")
    if name not in ("a.csv", "a.tsv"):  # an upload of these holds numbers
        (problem,) = look(folder / "text" / name).problems
        assert problem.startswith(told)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_row_of_glue_that_lacks_a_text_stays(folder: Path, suffix: str) -> None:
    columns = dict(zip(NAMES, map(list, zip(*ROWS, strict=True)), strict=True))
    file = written(folder / "glue" / "mrpc" / f"validation.{suffix}", columns)
    assert texts(MRPC) == PAIRS
    place = f"MPT_DATA_DIR/glue/mrpc/validation.{suffix}"
    assert inputs.used() == {place: sha256(file.read_bytes())}


def test_a_broken_copy_of_glue_is_refused(folder: Path) -> None:
    (folder / "glue" / "mrpc" / "validation.jsonl").write_text("{")
    told = "glue/mrpc/validation cannot be used: line 1 is not JSON"
    assert refused(MRPC).startswith(told)


class Hub(SimpleNamespace):
    """The package `datasets`, with one set."""

    def load_dataset(self, name: str, subset: str, split: str) -> Any:
        assert (name, subset, split) == ("nyu-mll/glue", "mrpc", "validation")
        rows = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
        return HubRows(rows)


class HubRows(list[dict[str, Any]]):
    column_names = NAMES


@pytest.mark.parametrize("with_folder", [True, False])
def test_the_hub_gives_the_rows_that_a_local_copy_gives(
    folder: Path, monkeypatch: pytest.MonkeyPatch, with_folder: bool
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Hub())
    if not with_folder:
        monkeypatch.delenv("MPT_DATA_DIR")
    found: Rows = texts(MRPC)
    assert found == PAIRS
    digest = sha256(json.dumps(PAIRS).encode())
    assert inputs.used() == {"nyu-mll/glue/mrpc/validation, the texts as JSON": digest}


def test_a_hub_that_cannot_be_reached_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(f"no   route\n{'x' * 400}")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=fail))
    cure = "put validation.parquet into MPT_DATA_DIR/glue/mrpc, or let this machine reach the hub"
    assert refused(MRPC) == f"glue/mrpc/validation is not here: {cure} (no route {'x' * 291})"


def test_an_inspection_counts_the_texts_of_the_fullest_column(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "a": ["one", None, ""],
        "b": ["x", "y", None],
        "score": [0.5, 1.5, 2.5],
    }
    for name in ("x.jsonl", "x.parquet"):
        found = look(written(tmp_path / name, columns))
        assert (found.format, found.n, found.columns) == (name[2:], 2, ["a", "b"])
        assert (found.dim, found.problems) == (None, [])
    (tmp_path / "x.txt").write_text("one\ntwo\nthree\n")
    assert look(tmp_path / "x.txt") == Inspection("txt", 3, None, None, None, [])
    (tmp_path / "x.jsonl").write_text('{"a": ""}')
    assert look(tmp_path / "x.jsonl").problems == ["it has no text in it"]
    (tmp_path / "x.jsonl").write_text('{"a": "x"}\n{"a": null}\n{"a": " "}\n')
    found = look(tmp_path / "x.jsonl")
    warning = "2 of 3 rows have no text: they keep their numbers and have no score"
    assert (found.n, found.reading) == (1, {"warnings": [warning]})


def test_exit_status_of_an_inspection_reports_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "elsewhere")  # this process is not to limit itself
    (tmp_path / "x.txt").write_text("one\n")
    assert main(str(tmp_path / "x.txt")) == 0
    assert json.loads(capsys.readouterr().out) == {"format": "txt", "n": 1, "problems": []}
    (tmp_path / "x.exe").touch()
    assert main(str(tmp_path / "x.exe")) == 1

    def too_large(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr("mptcore.data.inspect.look", too_large)
    assert main(str(tmp_path / "x.txt")) == 1
    assert "it takes more than 1024 MiB of memory" in capsys.readouterr().out

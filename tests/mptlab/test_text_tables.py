"""Texts of files and DataFrames: which column is read, what is refused, and what a result keeps."""

import io
import re
from pathlib import Path
from typing import Any

import pandas
import pytest

from mptlab.text_tables import TextTable, joined, read_texts, texts_of
from mptlab.texts import Texts, score_spec

SMILES = ["CCO", "", "c1ccccc1", "C,C"]
FRAME = {"id": [1, 2, 3, 4], "smiles": ["CCO", None, "c1ccccc1", "C,C"], "y": [0.5, None, 2.0, 3.0]}
ROWS = ["smiles", "id", "y"]


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def contents() -> dict[str, bytes]:
    frame, parquet = pandas.DataFrame(FRAME), io.BytesIO()
    frame.to_parquet(parquet)
    return {
        "t.csv": frame.to_csv(index=False).encode(),
        "t.CSV": frame.to_csv(index=False, lineterminator="\r\n").encode("utf-8-sig"),
        "t.tsv": frame.to_csv(index=False, sep="\t").encode(),
        "t.jsonl": frame.to_json(orient="records", lines=True).encode("utf-8-sig"),
        "t.parquet": parquet.getvalue(),
    }


@pytest.mark.parametrize("name", contents())
def test_the_only_column_of_text_is_read(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, name, contents()[name])
    for table in (read_texts(file), texts_of(file), read_texts(file, "smiles")):
        assert table.texts == SMILES
        assert table.column == "smiles"
        assert [str(value) for value in table.columns["id"]] == ["1", "2", "3", "4"]
        (note,) = table.notes
        assert note.endswith("4 texts of column smiles, 1 of them empty; other columns: id, y")
        assert ("(names in its first line)" in note) == (file.suffix.lower() in (".csv", ".tsv"))


@pytest.mark.parametrize("index", [[10, 20, 30, 40], ["a", "b", "c", "d"]])
def test_a_frame_keeps_its_index(index: list[Any]) -> None:
    frame = pandas.DataFrame(FRAME, index=index)
    table = texts_of(frame)
    assert (table.texts, table.column) == (SMILES, "smiles")
    assert texts_of(frame["smiles"]).texts == SMILES
    rows = Texts([{"row": i, "text": text} for i, text in enumerate(SMILES)], ["row", "text"])
    rows.add(table)
    assert rows.columns == ["row", "text", "id", "y"]
    result = rows.to_pandas()
    assert [*result.index] == index
    assert frame.join(result[["text"]])["text"].tolist() == SMILES
    rows = Texts([{"row": i} for i in range(4)], ["row"])
    rows.add(texts_of(frame["smiles"]))
    assert [*rows.to_pandas().index] == index


def test_rows_of_json_may_lack_values(tmp_path: Path) -> None:
    lines = '{"smiles": "CCO"}\n\n{"y": 2}\n{"smiles": null, "y": NaN}\n'
    table = read_texts(written(tmp_path, "t.jsonl", lines))
    assert table.texts == ["CCO", "", ""]
    assert table.columns == {"y": [None, 2, None]}


def test_the_index_of_a_parquet_file_is_not_its_text(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pandas.DataFrame({"smiles": ["CCO", "C"]}, index=["a", "b"]).to_parquet(file)
    table = read_texts(file)
    assert table.texts == ["CCO", "C"]
    assert [*table.columns.values()] == [["a", "b"]]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", "id,smiles\nm1,CCO\n", "several columns of text: id, smiles. Name the one that "
         "is scored: --column id"),
        ("t.csv", "id,y\n1,2\n", "no column of text; it has id, y"),
        ("t.csv", "a,smiles,a\n1,CCO,2\n", "several columns of one name: a"),
        ("t.csv", "smiles,y\nCCO\n", "line 2 has 1 cells, but the first line has 2"),
        ("t.csv", "text\nOh, no\n", "line 2 has 2 cells, but the first line has 1"),
        ("t.csv", "id;smiles\n1;CCO\n", "If its cells are separated by ';', give --sep ';'"),
        ("t.csv", "id\tsmiles\n1\tCCO\n", r"give --sep '\t'"),
        ("t.tsv", "id,smiles\n1,CCO\n", "give --sep ','"),
        ("t.csv", 'text\n"a\n', "line 2: unexpected end of data"),
        ("t.csv", "", "has no columns in it"),
        ("t.csv", b"text\n\xff\xfe\n", "is not UTF-8 text"),
        ("t.jsonl", '{"text": "a"}\n{"text"\n', "line 2 is not JSON"),
        ("t.jsonl", '"CCO"\n', "line 1 is not a JSON object"),
        ("t.jsonl", '{"text": "a", "text": "b"}\n', "an object has the same name twice"),
        ("t.jsonl", '{"text": "a", "y": Infinity}\n', "Infinity is no value"),
        ("t.jsonl", '{"text": "a"}\n\n{"text": 5}\n', "row 1 of column text is 5, not text"),
        ("t.smi", "CCO ethanol\n", r"files, not .smi"),
        ("t.gz", b"\x1f\x8b", r"files, not .gz"),
    ],
)  # fmt: skip
def test_a_table_that_could_be_read_wrongly_is_refused(
    tmp_path: Path, name: str, content: str | bytes, reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        read_texts(written(tmp_path, name, content))


def test_a_column_or_a_separator_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    table = written(tmp_path, "t.csv", "id;smiles\n1;CCO\n")
    lines = written(tmp_path, "t.txt", "CCO\n")
    tabs = written(tmp_path, "tabs.csv", "id\tsmiles\n1\tCCO\n")
    assert read_texts(table, separator=";").texts == ["CCO"]
    assert read_texts(tabs, separator=r"\t").texts == ["CCO"]
    for file, column, separator, reason in (
        (table, "text", ";", "has no column text; it has id, smiles"),
        (table, None, ";;", "a separator is one character"),
        (lines, "smiles", None, "has no columns"),
        (lines, None, ";", "has no cells to separate"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_texts(file, column, separator)


def test_blank_lines_of_a_table(tmp_path: Path) -> None:
    """They are rows of a table of one column, but for those at its end."""
    one = written(tmp_path, "one.csv", "smiles\nCCO\n\nCCN\n\n\n")
    assert read_texts(one).texts == ["CCO", "", "CCN"]
    two = written(tmp_path, "two.csv", "smiles,y\nCCO,1\n\nCCN,2\n")
    assert read_texts(two).texts == ["CCO", "CCN"]


def test_cells_that_may_be_missing_are_said(tmp_path: Path) -> None:
    (note,) = read_texts(written(tmp_path, "t.csv", "smiles,y\nNA,1\nCCN,NA\n")).notes
    assert "2 texts of column smiles (a cell 'NA' is read as text); other columns: y" in note


def test_a_fasta_file_of_several_sequences_is_a_table(tmp_path: Path) -> None:
    file = written(tmp_path, "t.faa", "\ufeff>a one\nMK\nTA*\n>b\n>c\nYI\n")
    table = read_texts(file)
    assert table.texts == ["MKTA", "", "YI"]
    assert table.columns == {"header": ["a one", "b", "c"]}
    assert table.notes[0].endswith("3 sequences; their headers are in the column header")
    assert "1 of 3 sequences end in *" in table.notes[1]


def test_lines_that_look_like_another_kind_are_said(tmp_path: Path) -> None:
    assert read_texts(written(tmp_path, "t.txt", "CCO\n")).notes == []
    for name, content, advice in (
        ("lines", "CCO\n", "1 texts, one in each line"),
        ("t.txt", ">a\nMKTA\n", "name it .fasta"),
        ("t.txt", '{"text": "CCO"}\n', "name it .jsonl"),
    ):
        (note,) = read_texts(written(tmp_path, name, content)).notes
        assert advice in note


def test_a_text_is_one_text(tmp_path: Path) -> None:
    assert texts_of("CCO").texts == ["CCO"]
    assert texts_of(text for text in ("CCO", None)).texts == ["CCO", ""]
    assert texts_of(pandas.Series(["CCO", pandas.NA, float("nan")])).texts == ["CCO", "", ""]
    file = written(tmp_path, "t.txt", "CCO\n")
    with pytest.raises(ValueError, match="is a file: for its texts give"):
        texts_of(str(file))
    for wrong in ({"smiles": ["CCO"]}, b"CCO", 5):
        with pytest.raises(ValueError, match="give a text, a list of texts, a DataFrame"):
            texts_of(wrong)
    with pytest.raises(ValueError, match="text 1 is 5, not text"):
        texts_of(["CCO", 5])
    with pytest.raises(ValueError, match="only a table has columns"):
        texts_of(["CCO"], "smiles")


def test_a_result_keeps_columns_of_its_own_names() -> None:
    table = TextTable(["a", "b"], "s", {"tokens": [7, 8], "input_tokens": [1, 2], "id": [3, 4]})
    rows = [{"row": 1, "tokens": 5}, {"row": 0, "tokens": 6}]
    names = joined(rows, ["row", "tokens"], table)
    assert [*names.values()] == ["input_tokens", "input_input_tokens", "id"]
    assert rows[0] == {
        "row": 1, "tokens": 5, "input_tokens": 8, "input_input_tokens": 2, "id": 4,
    }  # fmt: skip


def test_empty_texts_and_named_columns_are_uploaded() -> None:
    sent: list[str] = []

    def upload(file: Path) -> Any:
        sent.append(file.read_text())
        return {"id": "a1"}

    frame = pandas.DataFrame({"smiles": ["CCO", "CCN"], "pair": [1, 1], "y": [0.5, None]})
    table = texts_of(frame)
    assert score_spec(table, "m", upload, None)["data"]["lines"] == ["CCO", "CCN"]
    options = {"group_column": "pair", "label_column": "y"}
    spec = score_spec(table, "m", upload, None, **options)
    assert spec["data"] == {"source": "text", "dataset": "a1", "column": "smiles"}
    assert spec["evaluate"] == {"texts": options}
    assert score_spec(texts_of(["a", None, " "]), "m", upload, None)["data"]["dataset"] == "a1"
    assert score_spec(texts_of("a" * 100_001), "m", upload, None)["data"]["dataset"] == "a1"
    assert sent[:2] == [
        '{"smiles": "CCO", "pair": 1, "y": 0.5}\n{"smiles": "CCN", "pair": 1, "y": null}\n',
        '{"text": "a"}\n{"text": null}\n{"text": null}\n',
    ]
    with pytest.raises(ValueError, match="the texts have no column z; they have pair, y, smiles"):
        score_spec(table, "m", upload, None, label_column="z")


def test_one_of_several_columns_of_a_frame_is_chosen() -> None:
    frame = pandas.DataFrame({"first": ["a", "b"], "second": ["c", "d"]})
    table = texts_of(frame, "second")
    assert (table.texts, table.column) == (["c", "d"], "second")
    assert table.columns == {"first": ["a", "b"]}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_one_of_several_columns_of_a_file_is_chosen(tmp_path: Path, suffix: str) -> None:
    frame = pandas.DataFrame({"first": ["a", "b"], "second": ["c", "d"]})
    file = tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(file)
    elif suffix == ".jsonl":
        frame.to_json(file, orient="records", lines=True)
    else:
        frame.to_csv(file, sep="," if suffix == ".csv" else "\t", index=False)
    table = read_texts(file, "second")
    assert (table.texts, table.columns) == (["c", "d"], {"first": ["a", "b"]})

"""Groups, categories and labels of texts, from columns of a file."""

import json
import math
from pathlib import Path
from typing import Any

import pandas
import pytest

from mptcore.presets import PRESETS
from mptcore.protocol.records import Log, Record, RunError
from mptcore.run import resumable
from mptcore.runtime.state import RunState
from tests.mptcore.families.masked_lm.test_text_scores import Plain, models, of, scored
from tests.support.runs import metric, spec_of, std_err_of, value_of

__all__ = ["models"]  # the fixture


def write_table(path: Path, columns: dict[str, list[Any]]) -> None:
    """Write a table as pandas writes it."""
    frame = pandas.DataFrame(columns)
    match path.suffix:
        case ".jsonl":
            frame.to_json(path, orient="records", lines=True)
        case ".csv":
            frame.to_csv(path, index=False)
        case _:
            frame.to_parquet(path)


def warnings(records: list[Record]) -> list[str]:
    return [one.message for one in records if isinstance(one, Log) and one.level == "warning"]


TABLE = [
    {"text": "unlikely cats", "pair": "x", "score": 1.5},
    {"text": "cats unlikely", "pair": "y", "score": 2},
    {"text": "", "pair": "w", "score": 3},
    {"text": "the mat", "pair": "x", "score": "high"},
    {"text": "mat the", "pair": "y", "score": 0.5},
    {"text": "on the mat", "score": 7},
    {"text": "a mat", "pair": "z", "score": 4},
]


def test_groups_and_labels_come_from_columns(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "t.jsonl").write_text("\n".join(map(json.dumps, TABLE)))
    value = of({"file": "t.jsonl"}, group_column="pair", label_column="score")
    rows, found = scored(value, tmp_path)
    assert [row["group"] for row in rows] == ["x", "y", "w", "x", "y", None, "z"]
    assert [row["label"] for row in rows] == [1.5, 2, 3, None, 0.5, 7, 4]
    assert rows[2]["reason"] == "it has no text; its group has no other text"
    assert rows[3]["reason"] == "the label 'high' is not a number"
    assert rows[5]["reason"].startswith("it has no group")
    assert rows[6]["reason"] == "its group has no other text"
    assert rows[4]["difference"] == rows[4]["pll"] - rows[1]["pll"]
    assert rows[0]["difference"] == 0
    assert {rows[0]["rank"], rows[3]["rank"]} == {1, 2}
    assert value_of(metric(found, "groups_scored")) == 2
    right = [rows[i]["rank"] == 1 for i in (0, 1)]
    assert value_of(metric(found, "accuracy")) == sum(right) / 2
    assert std_err_of(metric(found, "accuracy")) > 0
    assert -1 <= value_of(metric(found, "spearman")) <= 1
    warnings = [one.message for one in found if isinstance(one, Log) and one.level == "warning"]
    told = "1 of 6 scored texts have no label that is a number: spearman leaves them out"
    assert told in warnings


def test_labels_may_be_numbers_as_text(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    labels = ["1.5", "2", "1_0", "inf", "x", True, 4]
    lines = [json.dumps({"text": "the cats", "score": label}) for label in labels]
    (tmp_path / "text" / "t.jsonl").write_text("\n".join(lines))
    rows, _ = scored(of({"file": "t.jsonl"}, label_column="score"), tmp_path)
    assert [row["label"] for row in rows] == [1.5, 2, None, None, None, None, 4]


EMPTY = ["the cats", None, "a mat", "the mat", " ", "cats sat", "", "unlikely cats"]
"""Texts of rows 0 to 7, three of which have none."""


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.parquet"])
def test_rows_without_text_keep_their_number_and_their_group(
    models: Path, tmp_path: Path, name: str
) -> None:
    plain = Plain(models / "pieces")
    (tmp_path / "text").mkdir()
    table = {"text": EMPTY, "n": [*range(8)]}
    write_table(tmp_path / "text" / name, table)
    rows, found = scored(of({"file": name}, group_size=2, label_column="n"), tmp_path)
    assert [row["row"] for row in rows] == [row["label"] for row in rows] == [*range(8)]
    assert [row["group"] for row in rows] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    for row, text in zip(rows, EMPTY, strict=True):
        if text and text.strip():
            assert row["pll"] == pytest.approx(sum(plain.pll(text)), abs=1e-4)
        else:
            assert row["pll"] is row["tokens"] is None
            assert row["reason"] == "it has no text; a text of its group has no score"
    assert rows[3]["difference"] == rows[3]["pll"] - rows[2]["pll"]
    counts = ("texts_scored", "texts_left_out", "groups_scored", "groups_left_out")
    assert [value_of(metric(found, one)) for one in counts] == [5, 3, 1, 3]
    assert value_of(metric(found, "accuracy")) == float(rows[2]["pll"] > rows[3]["pll"])
    detail = "(each has a text without a score, or one text only)"
    assert warnings(found) == [
        "8 texts, 3 of them without scores, such as text 1: it has no text",
        f"3 of 4 groups are left out {detail}: 0, 2, 3",
    ]


def test_a_pair_that_lacks_a_text_keeps_its_place(tmp_path: Path) -> None:
    """The other pairs are compared as before."""
    good, bad = ["the cat sat", "a cat", None, "the mat"], ["cat the sat", "", "cats a", "mat the"]
    (tmp_path / "text").mkdir()
    write_table(tmp_path / "text" / "t.jsonl", {"good": good, "bad": bad})
    data = {"file": "t.jsonl", "column": "good", "second_column": "bad"}
    rows, found = scored(of(data, group_size=2), tmp_path)
    assert [row["text"] for row in rows[2:6]] == ["a cat", "", "", "cats a"]
    assert [row["pll"] is not None for row in rows] == [
        True, True, True, False, False, True, True, True,
    ]  # fmt: skip
    assert rows[7]["difference"] == rows[7]["pll"] - rows[6]["pll"]
    right = [rows[0]["rank"] == 1, rows[6]["rank"] == 1]
    assert value_of(metric(found, "accuracy")) == sum(right) / 2
    assert value_of(metric(found, "groups_left_out")) == 2


def test_blank_lines_of_a_file_of_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "t.txt").write_bytes(b"the cats\r\n\r\ncats sat\r\n \r\na mat\r\n")
    rows, found = scored(of({"file": "t.txt"}, group_size=2), tmp_path)
    assert [(row["row"], row["text"]) for row in rows] == [
        (0, "the cats"), (1, "cats sat"), (2, "a mat"),
    ]  # fmt: skip
    assert value_of(metric(found, "texts_left_out")) == 0
    assert value_of(metric(found, "groups_left_out")) == 1


def test_a_last_group_with_a_text_too_few_is_named(tmp_path: Path) -> None:
    rows, found = scored(of(["the cats", "cats", "a mat", "a", "mat"], group_size=3), tmp_path)
    assert [row["rank"] is not None for row in rows] == [True] * 5
    assert warnings(found) == ["group 1, the last one, has 2 texts, not 3"]


def test_a_group_of_which_n_chooses_a_part_has_no_order(tmp_path: Path) -> None:
    """Texts that `n` chooses keep their row, and none of them is empty."""
    (tmp_path / "text").mkdir()
    write_table(tmp_path / "text" / "t.jsonl", {"text": EMPTY})
    rows, found = scored(of({"file": "t.jsonl", "n": 4, "seed": 1}, group_size=8), tmp_path)
    assert len(rows) == 4
    assert all(row["text"] == EMPTY[row["row"]] for row in rows)
    assert {row["reason"] for row in rows} == {"a text of its group is not among the n chosen ones"}
    assert value_of(metric(found, "groups_left_out")) == 1


def test_a_curve_counts_the_rows_without_text(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    write_table(tmp_path / "text" / "t.jsonl", {"text": EMPTY})
    value = of({"file": "t.jsonl"})
    value["evaluate"] = {"masks": {"rates": [0.5]}}
    found = [one for one in resumable(spec_of(value), RunState()) if one is not None]
    assert value_of(metric(found, "sequences_left_out")) == 3
    (warning,) = warnings(found)
    assert warning.endswith("; 3 sequences without one were left out; the model takes 40 tokens, "
                            "not max_length 512")  # fmt: skip


def test_the_blimp_preset_gives_the_accuracy_of_each_paradigm(tmp_path: Path) -> None:
    """On four pairs in the format of BLiMP, because its files are not here."""
    good, bad = ["the cat sat", "a cat", "cats sat", "the mat"], ["cat the sat", "cat a"]
    pairs = zip(good, [*bad, "sat cats sat", "mat the"], ["x", "y", "x", "y"], strict=True)
    lines = [{"sentence_good": g, "sentence_bad": b, "UID": u, "pairID": "0"} for g, b, u in pairs]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "blimp.jsonl").write_text("\n".join(map(json.dumps, lines)))
    value = PRESETS["blimp"].specs[0].model_dump(mode="json")
    value["model"]["checkpoint"] = "pieces"
    rows, found = scored(value, tmp_path)
    assert [row["text"] for row in rows[:3]] == ["the cat sat", "cat the sat", "a cat"]
    assert [row["category"] for row in rows] == ["x", "x", "y", "y", "x", "x", "y", "y"]
    right = [a["pll"] > b["pll"] for a, b in zip(rows[::2], rows[1::2], strict=True)]
    assert len({*right}) == 2, "a case of each outcome"
    assert value_of(metric(found, "accuracy")) == sum(right) / 4
    for category, own in (("x", right[::2]), ("y", right[1::2])):
        one = metric(found, "accuracy_by_category", category=category)
        assert value_of(one) == sum(own) / 2
        chance = (sum(own) + 2) / 6
        assert std_err_of(one) == pytest.approx(math.sqrt(chance * (1 - chance) / 6))


def test_too_many_categories_are_refused(tmp_path: Path) -> None:
    """The first text of a group has its category; a group without one is in none."""
    (tmp_path / "text").mkdir()
    table = [{"text": one, "of": i if i else None} for i in range(201) for one in ("a cat", "a")]
    (tmp_path / "text" / "t.jsonl").write_text("\n".join(map(json.dumps, table)))
    value = of({"file": "t.jsonl"}, group_size=2, category_column="of")
    _, found = scored(value, tmp_path)
    assert sum(getattr(one, "name", None) == "accuracy_by_category" for one in found) == 200
    table[0]["of"] = "one more"
    (tmp_path / "text" / "t.jsonl").write_text("\n".join(map(json.dumps, table)))
    with pytest.raises(RunError, match="column of has 201 different values, at most 200"):
        scored(value, tmp_path)


def test_a_group_with_a_long_name_is_none(tmp_path: Path) -> None:
    table = [{"text": "the cat", "pair": "x" * 201}, {"text": "the mat", "pair": "x" * 200}]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "t.jsonl").write_text("\n".join(map(json.dumps, table)))
    columns = {"group_column": "pair", "category_column": "pair"}
    first, second = scored(of({"file": "t.jsonl"}, **columns), tmp_path)[0]
    for column in ("group", "category"):
        assert (first[column], second[column]) == (None, "x" * 200)
    assert "more than 200 characters" in first["reason"]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "t.jsonl").write_text("\n".join(map(json.dumps, TABLE)))
    with pytest.raises(RunError, match="it has no column other; it has pair, score, text"):
        scored(of({"file": "t.jsonl"}, label_column="other"), tmp_path)

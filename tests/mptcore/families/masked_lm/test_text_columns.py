"""Groups, categories and labels of texts, from columns of a file."""

import json
import math
from pathlib import Path

import pytest

from mptcore.presets import PRESETS
from mptcore.protocol.records import RunError
from tests.mptcore.families.masked_lm.test_text_scores import models, of, scored
from tests.support.runs import metric, std_err_of, value_of

__all__ = ["models"]  # the fixture


TABLE = [
    {"text": "unlikely cats", "pair": "x", "score": 1.5},
    {"text": "cats unlikely", "pair": "y", "score": 2},
    {"text": "", "pair": "x", "score": 3},
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
    assert [row["group"] for row in rows] == ["x", "y", "x", "y", None, "z"]
    assert [row["label"] for row in rows] == [1.5, 2, None, 0.5, 7, 4]
    assert rows[2]["reason"] == "the label 'high' is not a number"
    assert rows[4]["reason"].startswith("it has no group")
    assert rows[5]["reason"] == "its group has no other text"
    assert rows[3]["difference"] == rows[3]["pll"] - rows[1]["pll"]
    assert rows[0]["difference"] == 0
    assert {rows[0]["rank"], rows[2]["rank"]} == {1, 2}
    assert value_of(metric(found, "groups_scored")) == 2
    right = [rows[i]["rank"] == 1 for i in (0, 1)]
    assert value_of(metric(found, "accuracy")) == sum(right) / 2
    assert std_err_of(metric(found, "accuracy")) > 0
    assert -1 <= value_of(metric(found, "spearman")) <= 1


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

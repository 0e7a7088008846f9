"""Specs in the forms that users have them, and curves as tables."""

import json
import math
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mptlab import Curves
from mptlab.specs import changed, is_spec_file, parse_spec, parse_value, read_spec, to_json


def test_other_types_are_converted_for_json() -> None:
    model = SimpleNamespace(model_dump=lambda mode: {"mode": mode})
    array = SimpleNamespace(tolist=lambda: [1, 2])
    spec = {"a": range(2), "b": PurePosixPath("c/d"), "c": [{"e"}], "model": model, "x": array}
    assert json.loads(to_json(spec)) == {
        "a": [0, 1], "b": "c/d", "c": [["e"]], "model": {"mode": "json"}, "x": [1, 2],
    }  # fmt: skip
    assert to_json({"a": "NaN and Infinity"}) == b'{"a": "NaN and Infinity"}'
    with pytest.raises(TypeError, match="3j is not valid JSON"):
        to_json({"a": 3j})
    for value, field in (
        ({"spec": {"data": {"heldout": math.nan, "n": 1}}}, "/spec/data/heldout: .*, not NaN"),
        ({"grid": {"a/b~": np.array([0.5, -math.inf])}}, "/grid/a~1b~0/1: .*, not -Infinity"),
    ):
        with pytest.raises(ValueError, match=f"^{field}$"):
            to_json(value)


@pytest.mark.parametrize(
    ("given", "names_a_file"),
    [
        (Path("a"), True), ("a.json", True), ("a.yaml", True), ("a.yml", True), ("b/a", True),
        ("table1", False), ("a.json5", False), ({"a": 1}, False), (None, False),
    ],
)  # fmt: skip
def test_files_and_presets_are_distinguished(given: object, names_a_file: bool) -> None:
    assert is_spec_file(given) == names_a_file


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ('{"a":\n 1,,}', "a.json", "a.json is not valid JSON: .* line 2, column 4"),
        ("a: 1", "a.json", "a.json is not valid JSON: .* line 1, column 1"),
        ("{", "a.yaml", "a.yaml is not valid YAML: .*line 1, column"),
        ("[1]", "a.json", "a.json contains no spec"),
        ("3", "a.yml", "a.yml contains no spec"),
    ],
)
def test_a_text_that_is_not_a_spec_gives_the_position_in_one_line(
    text: str, name: str, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as error:
        parse_spec(text, name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_spec_is_read_from_a_file_of_either_form(tmp_path: Path, encoding: str) -> None:
    spec = {"name": "ä", "data": {"n": 3, "rate": 1e-3, "big": 2e6}, "word": "1e-3x"}
    forms = {"a.json": json.dumps(spec, ensure_ascii=False), "plain": json.dumps(spec)}
    yaml = "name: ä\ndata: {n: 3, rate: 1E-3, big: +2e6}\nword: 1e-3x"
    forms |= dict.fromkeys(("a.yaml", "a.yml"), yaml)
    for name, text in forms.items():
        (tmp_path / name).write_text(text, encoding=encoding)
        assert read_spec(tmp_path / name) == spec


def test_values_are_parsed_as_json_if_possible() -> None:
    typed = {"3": 3, "[1, 2]": [1, 2], "true": True, "a b": "a b", '"3"': "3", "": ""}
    assert {text: parse_value(text) for text in typed} == typed


def test_a_field_of_a_spec_is_changed_by_its_path() -> None:
    spec: dict[str, Any] = {"a": {"b": 1}, "c": [1]}
    before = json.dumps(spec)
    assert changed(spec, {"c": 2, "x.y.z": 3}) == {"a": {"b": 1}, "c": 2, "x": {"y": {"z": 3}}}
    assert changed(spec, {"a.b": 2})["a"] == {"b": 2}
    for path, last in (("a.b.c", "c"), ("c.d", "d"), ("a.b.c.d", "d")):
        refusal = f"{path} is not a valid path: the part before .{last} is not an object"
        with pytest.raises(ValueError, match=refusal):
            changed(spec, {path: 2})
    assert json.dumps(spec) == before


SERIES: list[dict[str, Any]] = [
    {"name": "score", "labels": {"seed": 4}, "x": [1, 2], "value": [-1.0, None],
     "std_err": [0.1, None], "n": [3, 3], "reasons": [None, "overflow"]},
    {"name": "<lml>", "labels": {"epoch": 0}, "x": [], "value": [], "std_err": [], "n": []},
    {"name": "lml", "labels": {"seed": 4, "epoch": 0}, "x": [0.5], "value": [1 / 3],
     "std_err": [0.0], "n": [1], "total_points": 700},
]  # fmt: skip


def test_curves_are_a_row_for_each_point() -> None:
    assert Curves(SERIES).columns() == {
        "series": ["score", "score", "lml"],
        "seed": [4, 4, 4],
        "epoch": [None, None, 0],
        "x": [1, 2, 0.5],
        "value": [-1.0, None, 1 / 3],
        "std_err": [0.1, None, 0.0],
        "n": [3, 3, 1],
        "reason": [None, "overflow", None],
    }
    assert Curves().columns().keys() == {"series", "x", "value", "std_err", "n", "reason"}


def test_curves_are_shown_by_their_ends() -> None:
    rows = Curves(SERIES)._repr_html_().split("<tr>")
    cells = [[cell.split("<")[0] for cell in row.split("<td>")[1:]] for row in rows]
    assert [row for row in cells if row] == [
        ["score", "seed=4", "2", "1", "2", ""],
        ["&lt;lml&gt;", "epoch=0", "0", "", "", ""],
        ["lml", "seed=4, epoch=0", "700", "0.5", "0.5", "0.333333"],
    ]

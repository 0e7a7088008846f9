"""Specs in the forms that users have them, and curves as tables."""

import json
import math
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mptlab import Curves
from mptlab.specs import changed, is_spec_file, parse_spec, parse_value, plain, read_spec, to_json


def test_other_types_are_converted_for_json() -> None:
    asked: list[str] = []

    def dumped(mode: str) -> dict[str, int]:
        asked.append(mode)
        return {"a": 1}

    assert plain(SimpleNamespace(model_dump=dumped)) == {"a": 1}
    assert asked == ["json"]
    assert plain(SimpleNamespace(tolist=lambda: [1, 2])) == [1, 2]
    assert plain(PurePosixPath("a/b")) == "a/b"
    assert plain(range(3)) == [0, 1, 2]
    assert to_json({"a": range(2), "b": PurePosixPath("c"), "d": [{"e"}]}) == (
        b'{"a": [0, 1], "b": "c", "d": [["e"]]}'
    )
    with pytest.raises(TypeError) as error:
        plain(3j)
    assert str(error.value) == (
        "3j is not valid JSON: give text, numbers, true, false, null, lists, mappings"
    )
    assert to_json({"a": "NaN and Infinity"}) == b'{"a": "NaN and Infinity"}'
    for value, told in (
        ({"spec": {"data": {"heldout": math.nan, "n": 1}}}, "/spec/data/heldout: .*, not NaN"),
        ({"grid": {"a/b~": np.array([0.5, -math.inf])}}, "/grid/a~1b~0/1: .*, not -Infinity"),
    ):
        with pytest.raises(ValueError, match=f"^{told}$"):
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
    ("text", "name", "told"),
    [
        ('{"a":\n 1,,}', "a.json", "a.json is not valid JSON: Expecting property name enclosed in "
         "double quotes at line 2, column 4"),
        ("[1]", "a.json", "a.json contains no spec: a spec is an object with model, data etc."),
        ("3", "a.yml", "a.yml contains no spec: a spec is an object with model, data etc."),
        ("a: 1", "a.json", "a.json is not valid JSON: Expecting value at line 1, column 1"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_a_spec_gives_the_position(text: str, name: str, told: str) -> None:
    with pytest.raises(ValueError, match=name) as error:
        parse_spec(text, name)
    assert str(error.value) == told


def test_invalid_yaml_gives_the_position_in_a_single_line() -> None:
    with pytest.raises(ValueError, match=r"^a\.yaml is not valid YAML: .*line 1, column") as error:
        parse_spec("{", "a.yaml")
    assert "\n" not in str(error.value)
    assert parse_spec("name: 1e-3x", "a.yml") == {"name": "1e-3x"}


def test_a_spec_is_read_from_a_file_of_either_form(tmp_path: Path) -> None:
    spec = {"name": "ä", "data": {"n": 3, "rate": 1e-3, "big": 2e6}}
    forms = {"a.json": json.dumps(spec, ensure_ascii=False), "plain": json.dumps(spec)}
    forms |= dict.fromkeys(("a.yaml", "a.yml"), "name: ä\ndata: {n: 3, rate: 1E-3, big: +2e6}")
    for name, text in forms.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_spec(tmp_path / name) == spec


def test_a_byte_order_mark_of_a_spec_is_left_out(tmp_path: Path) -> None:
    for name, text in (("a.json", '{"a": 1}'), ("a.yaml", "a: 1")):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_spec(tmp_path / name) == {"a": 1}
    assert parse_spec('\ufeff{"a": 1}', "standard input") == {"a": 1}


def test_values_are_parsed_as_json_if_possible() -> None:
    typed = {"3": 3, "[1, 2]": [1, 2], "true": True, "a b": "a b", '"3"': "3", "": ""}
    assert {text: parse_value(text) for text in typed} == typed


def test_an_unknown_path_of_a_spec_is_refused() -> None:
    spec: dict[str, Any] = {"a": {"b": 1}, "c": [1]}
    for path in ("a.b.c", "c.d", "a.b.c.d"):
        with pytest.raises(ValueError, match="is not a valid path") as error:
            changed(spec, {path: 2})
        last = path.rpartition(".")[2]
        assert (
            str(error.value)
            == f"{path} is not a valid path: the part before .{last} is not an object"
        )
    kept = json.dumps(spec)
    assert changed(spec, {"c": 2, "x.y.z": 3}) == {"a": {"b": 1}, "c": 2, "x": {"y": {"z": 3}}}
    assert changed(spec, {"a.b": 2})["a"] == {"b": 2}
    assert json.dumps(spec) == kept


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
    shown = Curves(SERIES)._repr_html_()
    cells = [row.split("<td>")[1:] for row in shown.split("<tr>")]
    found = [[cell.split("<")[0] for cell in row] for row in cells if row]
    assert found == [
        ["score", "seed=4", "2", "1", "2", ""],
        ["&lt;lml&gt;", "epoch=0", "0", "", "", ""],
        ["lml", "seed=4, epoch=0", "700", "0.5", "0.5", "0.333333"],
    ]
    for header in ("series", "labels", "points", "from x", "to x", "last value"):
        assert f"<th>{header}</th>" in shown

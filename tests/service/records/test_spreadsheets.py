"""Text in CSV that a spreadsheet would compute."""

from typing import Any

import pytest

from service.records.spreadsheets import cell, csv_text


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd|' /C calc'!A0", "-1+1", "-", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\n5", "＝1"],
)
def test_texts_are_not_formulas(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [-1.5, -3, None, True, "", "a=1", "'=1", "-1.5", "+2e5", "-inf"])
def test_numbers_and_harmless_text_stay(value: Any) -> None:
    assert cell(value) is value


def test_rows_as_csv() -> None:
    rows: list[list[Any]] = [
        ["a", "@b"],
        [-1.5, None],
        ['=HYPERLINK("x","y")', "two\nlines, and more"],
    ]
    assert csv_text(rows) == ('a,\'@b\n-1.5,\n"\'=HYPERLINK(""x"",""y"")","two\nlines, and more"\n')

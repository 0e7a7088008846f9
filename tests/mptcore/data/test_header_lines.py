"""The first line of a text file: names or numbers."""

from collections.abc import Collection

import pytest

from mptcore.data.files import UnreadableError
from mptcore.data.headers import is_header
from mptcore.specs.vectors import TableOptions

DECIMALS = ["0.11,0.52,0.93", "1.51,0.22,3.53"]
WHOLE = ["4,1,9", "5,6,2"]


def header(first: str, rows: list[str], quoted: Collection[int] = (), separator: str = ",") -> bool:
    cells, *below = (line.split(separator) for line in (first, *rows))
    options = TableOptions(decimal="," if separator == ";" else ".")
    return is_header(cells, below, options, quoted)


@pytest.mark.parametrize(
    "first",
    [
        "a,b,c",
        "a,2,3",
        "x,NA,3",
        "1000,1100,1200",
        "2021,2020,2019",
        "400.0,400.5,401.0",
        "-1,0,1",
        "0,10,1000",
        "1e3,2e3,3e3",
        "999.1,995.2,991.3",
        "age,0.5,1.0",
        "%,#,€",
        "a,b,?",
    ],
)
def test_names_are_recognised(first: str) -> None:
    assert header(first, DECIMALS)


def test_equal_spacing_may_be_rounded() -> None:
    rows = ["0.12345,0.2,0.34567".replace("0.2", "0.23456"), "1.1,2.2,3.3"]
    assert header("9999.104,9995.247,9991.391", rows)
    for first in ("9999.104,9995.247,9991.322", "1.1,1.2,1.4"):
        with pytest.raises(UnreadableError, match="may be the names"):
            header(first, rows)


@pytest.mark.parametrize(
    "first",
    [
        "0.25,0.13,0.77",  # neither rises nor falls
        "2019,2019,2020",  # equal cells
        "1,4",  # two numbers
        "31.51,63.22,125.13",  # neither whole nor equally spaced, as many decimals
    ],
)
def test_other_numbers_are_data(first: str) -> None:
    count = first.count(",") + 1
    rows = [",".join(line.split(",")[:count]) for line in DECIMALS]
    assert not header(first, rows)


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        ("2019,2020,2021", WHOLE),
        ("0.1,0.2,0.3", ["0.7,0.5,0.1"]),
        ("1,2,3", []),
        ("1,2,3", ["0.5,7,1.5"]),  # one column has no more decimals
        ("31.5,63,125", DECIMALS),  # unequal steps, but fewer decimals than the columns
        ("100.0757,150.1123,250.3012", WHOLE),  # or more
        ("1e-3,1e-2,1e-1", ["0.125,0.512,0.933"]),  # equal ratios
        ("ctrl,0,1,2", ["ctrl,0.5,1.5,2.5", "drug,1.5,0.5,0.25"]),  # a label that recurs
        ("1,NA,3", WHOLE),
        (",NA,3", WHOLE),
        ("country,2019,2020,2021", ["France,4,1,9"]),
        ("sample,1.53,0.27,0.4", ["s2,0.52,0.61,0.9"]),  # a label, or a name
        ("1.25,2.5,3.75,7.5,9.25", ["1.5,1.25,7.75,0.25,3.5"]),  # five numbers that rise
        (",5.1,3.5,1.4", ["23,4.9,3.0,1.4", "31,4.7,3.2,1.3"]),  # a missing value, or a corner
        ("2020-01-01,1,2,3", ["2020-01-02,0.5,2.5,1.5"]),
        ("s1,1,2,3", ["s2,0.5,2.5,1.5"]),
    ],
)
def test_two_plausible_readings_are_refused(first: str, rows: list[str]) -> None:
    with pytest.raises(UnreadableError, match=r"--header or --no-header .*header=yes or header=no"):
        header(first, rows)


def test_a_text_column_beside_names_of_numbers() -> None:
    assert header("sample,400,410,420", ["s1,0.12,0.5,0.3", "s2,0.22,0.25,0.1"])


def test_a_quoted_line_above_numbers_without_quotes_has_names() -> None:
    assert header("2019,2020", ["1,2", "3,4"], {0, 1})
    assert header(",2019,2020", ["1,0,2", "2,3,4"], {1, 2})  # as R writes row names
    assert not header("2019,2020", ["1,2", "3,4"])
    assert not header("2019,2020", ["1,2", "3,4"], {0})
    with pytest.raises(UnreadableError):  # the label of a row
        header("Smith,1.5,2.5", ["Jones,3.25,0.5"], {0})


@pytest.mark.parametrize("first", [",405.5,561.2,488.0", ",7,7,7", ",1,2,3", ",a,b,c"])
@pytest.mark.parametrize("ids", ["0 1 2", "7 3 12", "cell0 cell1 cell2", "2020-01-01 x y"])
def test_a_blank_above_ids_begins_a_line_of_names(first: str, ids: str) -> None:
    """A table of pandas with any names: its header was a row, and its index a measurement."""
    assert header(first, [f"{name},2.08,-2.48,1.25" for name in ids.split()])
    for others in ("1.5 2.5 3.5", "1 1 2"):
        rows = [f"{name},2.08,-2.48,1.25" for name in others.split()]
        if "a" in first:
            assert header(first, rows)
            continue
        with pytest.raises(UnreadableError):
            header(first, rows)


def test_labels_of_rows_without_names_are_data() -> None:
    assert not header("s1,1.53,0.27,0.4", ["s2,0.52,0.61,0.9"])
    assert not header("M,0.455,0.365,0.095", ["M,0.35,0.265,0.09", "F,0.53,0.42,0.135"])
    rising = ["1.25,2.5,3.75,7.5,9.25", "1.5,2.25,3.75,4.5,9.25", "0.5,2.25,3.25,4.5,7.25"]
    assert not header(rising[0], rising[1:])  # all rows rise


def test_an_odd_cell_beside_whole_numbers_is_no_name() -> None:
    for cell in ("<NA>", "<LOD", "#NV", "NaT", "n.b.", "3a", "1O", "3 mg", "below LOD"):
        with pytest.raises(UnreadableError):
            header(f"5,7,{cell}", ["61,2,3", "4,5,6", "9,1,2"])
    assert header("age,2019,2020", ["61.5,2.5,3.5", "4,5,6"])


def test_columns_without_values_or_with_one_odd_cell_have_names_too() -> None:
    for rows in (["1.5,2.5,", "0.5,1.5,"], ["1.5,2.5,7.25", "0.5,sat,0.25", "1,2.5,0.5"]):
        if rows[0].endswith(","):
            with pytest.raises(UnreadableError):
                header("1990,1991,1992", rows)
        else:
            assert header("1990,1991,1992", rows)
    assert not header("1.5,0.2,", ["0.4,1.1,"])


def test_a_single_row_with_a_missing_value_is_data() -> None:
    assert not header("1,,2,3", [])


def test_huge_numbers_are_no_numbers() -> None:
    assert header("a,b", ["1e999999999,2", "0.5,1.5"])


def test_decimal_commas_are_counted_as_decimals() -> None:
    assert header("400;410;420", ["0,12;0,5;0,3"], separator=";")


def test_a_decimal_point_beside_decimal_commas_is_no_number() -> None:
    rows = ["0,12;0,5;0,3", "1,5;0,7;0,1"]
    assert header("0.25;0.13;0.77", rows, separator=";")
    assert not header("0,25;0,13;0,77", rows, separator=";")

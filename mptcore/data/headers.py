"""Decide whether the first line of a text file has the names of its columns or numbers."""

import re
from collections.abc import Collection, Sequence
from decimal import Decimal, InvalidOperation
from enum import Enum
from itertools import pairwise

from mptcore.data.files import MISSING, UnreadableError
from mptcore.specs.vectors import TableOptions

MIN_NAMES = 3
"""Minimum number of distinct numbers in a line that may be names."""
ROUNDED_STEPS = 100
"""Minimum step, in units of the last digit, of numbers that are equally spaced up to rounding."""
RARE_NAMES, COMPARED_ROWS = 5, 10
"""Number of numbers that rarely rise by chance, and of rows that are compared with them."""
MAX_SHOWN = 5
MAX_DIGITS = 400
"""Maximum digits, and exponent, of a number: more than float64 has."""
MARKS = {
    *("", "?", "*", "none", "nan", "na", "n/a", "n.a", "n.d", "nd", "nil", "null", "missing"),
    *("inf", "infinity", "unknown", "#value!", "#div/0!", "#ref!", "#num!", "#name?", "#null!"),
}
"""Cells that stand for a value that is missing or no number, in small letters."""
HEADER_ADVICE = "give --header or --no-header (in a request header=yes or header=no)"


class Line(Enum):
    """Readings of a line of numbers."""

    NAMES = "names"
    DATA = "data"
    EITHER = "either"


def is_header(
    first: Sequence[str],
    rows: Sequence[Sequence[str]],
    options: TableOptions,
    quoted: Collection[int] = (),
) -> bool:
    """Return whether the cells of the first line are names.

    Words above columns of numbers are names. A line of numbers is taken as names if they are at
    least three distinct numbers that only rise or only fall, are whole or equally spaced, and have
    fewer decimals than the columns below them. So is one whose cells are in quotes while those
    below are not (`quoted` has the places of such cells), and one that begins with a blank above
    ids of rows, as tables of pandas do. Any other line of numbers is data. `rows` are the next
    lines.

    Raises UnreadableError if both readings are plausible: for such numbers above columns with no
    more decimals; for others that only rise or fall, and have fewer or more decimals than all
    columns, equal ratios, or are five or more; for other numbers beside words; and for cells that
    are neither numbers nor words, such as ? and <0.1."""
    cells = [cell.strip() for cell in first]
    below = [[row[c].strip() for row in rows if c < len(row)] for c in range(len(cells))]
    line = _decided(cells, below, options, quoted)
    if line == Line.EITHER:
        shown = ",".join(cells[:MAX_SHOWN])[:80] + (",…" if len(cells) > MAX_SHOWN else "")
        message = "may be the names of the columns or data"
        raise UnreadableError(f"the first line, {shown}, {message}: {HEADER_ADVICE}")
    return line == Line.NAMES


def _decided(
    cells: Sequence[str],
    below: Sequence[Sequence[str]],
    options: TableOptions,
    quoted: Collection[int],
) -> Line:
    numeric = [c for c, column in enumerate(below) if _has_numbers(column, options)]
    numbers = {c: n for c, cell in enumerate(cells) if (n := as_number(cell, options)) is not None}
    if not numeric:
        if any(c not in numbers and cell not in MISSING for c, cell in enumerate(cells)):
            return Line.NAMES
        if any(below) or len(numbers) < len(cells):
            return Line.DATA
        return _of_numbers([*numbers.values()], below, options)
    # a column without any value may have a name or a number in this line
    empty = [c for c, column in enumerate(below) if cells[c] not in MISSING >= {*column}]
    judged = sorted({*numeric, *empty})
    named = [c for c in judged if cells[c]]
    if named and all(c in quoted for c in named):
        return Line.NAMES
    others = [c for c in judged if c not in numbers and cells[c] not in MISSING]
    if others:
        return _beside_words(cells, below, options, judged, others, numbers)
    if not cells[0] and not {*cells[1:]} & MISSING:
        return _below_blank(cells, below, options)
    if any(cells[c] in MISSING for c in judged):
        return Line.EITHER
    labels = [c for c, cell in enumerate(cells) if c not in judged and cell not in MISSING]
    line = _of_numbers([numbers[c] for c in judged], [below[c] for c in judged], options)
    if line == Line.NAMES and any(_is_like(cells[c], below[c]) for c in labels):
        return Line.EITHER  # s1 above s2
    if line == Line.DATA and any(
        c not in numbers and not _is_like(cells[c], below[c]) for c in labels
    ):
        return Line.EITHER  # labels of rows, or names above them
    return line


def _below_blank(
    cells: Sequence[str], below: Sequence[Sequence[str]], options: TableOptions
) -> Line:
    """Decide about a line that begins with a blank: that of a table of pandas, or a row whose first
    value is missing."""
    numbers = [n for cell in cells[1:] if (n := as_number(cell, options)) is not None]
    are_all = len(numbers) == len(cells) - 1
    if are_all and _of_numbers(numbers, below[1:], options) == Line.DATA:
        if all(a == b for a, b in _decimals_above(numbers, below[1:], options)):
            return Line.EITHER
    return Line.NAMES if _are_ids(below[0], options) else Line.EITHER


def _beside_words(
    cells: Sequence[str],
    below: Sequence[Sequence[str]],
    options: TableOptions,
    judged: Sequence[int],
    others: Sequence[int],
    numbers: dict[int, Decimal],
) -> Line:
    """Decide about a line with cells above numbers that are no numbers (`others`)."""
    beside = [c for c in judged if c in numbers]
    if not beside and not any(_is_mark(cells[c]) for c in others):
        return Line.NAMES  # also %, #, €
    if not any(_is_word(cells[c]) for c in others):
        return Line.EITHER
    if not beside:
        return Line.NAMES
    line = _of_numbers([numbers[c] for c in beside], [below[c] for c in beside], options, 1)
    return Line.NAMES if line == Line.NAMES else Line.EITHER


def _of_numbers(
    numbers: Sequence[Decimal],
    columns: Sequence[Sequence[str]],
    options: TableOptions,
    min_names: int = MIN_NAMES,
) -> Line:
    """Decide about numbers above these columns."""
    if len(numbers) < min_names or not _only_rise_or_fall(numbers):
        return Line.DATA
    decimals = _decimals_above(numbers, columns, options)
    fewer, more = (all(a < b for a, b in decimals), all(a > b for a, b in decimals))
    if _is_regular(numbers):
        return Line.NAMES if fewer else Line.EITHER
    ratios = {a * c == b * b for a, b, c in zip(numbers, numbers[1:], numbers[2:], strict=False)}
    if fewer or more or ratios == {True}:
        return Line.EITHER
    # chance makes few rows of many numbers rise, unless all rows do
    rows = [*zip(*(column[:COMPARED_ROWS] for column in columns), strict=False)]
    others = [[as_number(cell, options) or Decimal() for cell in row] for row in rows]
    is_rare = len(numbers) >= RARE_NAMES and not all(map(_only_rise_or_fall, others))
    return Line.EITHER if is_rare else Line.DATA


def _only_rise_or_fall(numbers: Sequence[Decimal]) -> bool:
    steps = [second - first for first, second in pairwise(numbers)]
    return all(step > 0 for step in steps) or all(step < 0 for step in steps)


def _decimals_above(
    numbers: Sequence[Decimal], columns: Sequence[Sequence[str]], options: TableOptions
) -> list[tuple[int, int]]:
    """Return the decimals of each number, and the most in the column below it."""
    return [
        (
            _decimals(number),
            max((_decimals(as_number(cell, options)) for cell in column), default=0),
        )
        for number, column in zip(numbers, columns, strict=True)
    ]


def _is_regular(numbers: Sequence[Decimal]) -> bool:
    """Return whether numbers are whole or equally spaced. Large steps may differ by rounding:
    9999.10, 9995.25, 9991.39."""
    if all(number == number.to_integral_value() for number in numbers):
        return True
    steps = [second - first for first, second in pairwise(numbers)]
    unit = Decimal(1).scaleb(-max(map(_decimals, numbers)))
    spread = max(steps, default=Decimal()) - min(steps, default=Decimal())
    return spread == 0 or (spread <= 2 * unit and min(map(abs, steps)) >= ROUNDED_STEPS * unit)


def _are_ids(column: Sequence[str], options: TableOptions) -> bool:
    """Return whether cells are words or distinct whole numbers, as an index of pandas has."""
    numbers = [as_number(cell, options) for cell in column]
    whole = all(n is None or n == n.to_integral_value() for n in numbers)
    return bool(column) and whole and len({*column}) == len(column)


def _is_like(cell: str, column: Sequence[str]) -> bool:
    """Return whether a cell stands below again, or has digits and letters in the same places as
    those below, such as the date of a row."""
    forms = {re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "0", text)) for text in (cell, *column[:10])}
    return cell in column or (len(forms) == 1 and "0" in forms.pop())


def _is_word(cell: str) -> bool:
    """Return whether a cell is a word, and no mark of a missing value."""
    return any(map(str.isalpha, cell)) and not _is_mark(cell)


def _is_mark(cell: str) -> bool:
    """Return whether a cell stands for a value that is missing or no number."""
    return cell.casefold().strip("+-.<>") in MARKS


def _has_numbers(column: Sequence[str], options: TableOptions) -> bool:
    """Return whether most cells that are not missing are numbers."""
    observed = [cell for cell in column if cell not in MISSING]
    count = sum(as_number(cell, options) is not None for cell in observed)
    return bool(observed) and count >= len(observed) / 2


def as_number(cell: str, options: TableOptions) -> Decimal | None:
    """Return the finite number that a cell writes, 1 and 0 for true and false, or None."""
    text = cell.strip()
    if len(text) > MAX_DIGITS:
        return None
    if text.casefold() in ("true", "false"):
        return Decimal(text.casefold() == "true")
    if options.thousands:
        text = text.replace(options.thousands, "")
    if options.decimal == ",":
        text = text.replace(".", "_").replace(",", ".")
    try:
        number = Decimal(text) if "_" not in text else None
    except InvalidOperation:
        return None
    is_float = number is not None and number.is_finite() and abs(number.adjusted()) < MAX_DIGITS
    return number if is_float else None


def _decimals(number: Decimal | None) -> int:
    if number is None:
        return 0
    exponent = number.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0

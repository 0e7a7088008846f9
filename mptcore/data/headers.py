"""Decide whether the first line of a text file has the names of its columns or numbers."""

import re
from collections.abc import Collection, Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise

from mptcore.data.files import MISSING, UnreadableError
from mptcore.specs.data.reading import TableOptions

MIN_NAMES = 3
"""Minimum number of distinct numbers in a line that may be names."""
ROUNDED_STEPS = 100
"""Minimum step, in units of the last digit, of numbers that are equally spaced up to rounding."""
MAX_SHOWN = 5
MAX_DIGITS = 400
"""Maximum digits, and exponent, of a number: more than float64 has."""
MARKS = {
    *("", "?", "*", "none", "nan", "na", "n/a", "n.a", "n.d", "nd", "nil", "null", "missing"),
    *("inf", "infinity", "unknown", "#value!", "#div/0!", "#ref!", "#num!", "#name?", "#null!"),
}
"""Cells that stand for a value that is missing or no number, in small letters."""
CURE = "give --header or --no-header (in a request header=yes or header=no)"


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
    below are not (`quoted` has the places of such cells). Any other line of numbers is data. `rows`
    are the next lines.

    Raises UnreadableError if both readings are plausible: for such numbers above columns with no
    more decimals, or at unequal steps above columns with more; for numbers with decimals beside
    words; and for cells that are neither numbers nor words, such as ? and <0.1."""
    cells = [cell.strip() for cell in first]
    below = [[row[c].strip() for row in rows if c < len(row)] for c in range(len(cells))]
    numeric = [c for c, column in enumerate(below) if _has_numbers(column, options)]
    if not numeric:
        if any(as_number(cell, options) is None and cell not in MISSING for cell in cells):
            return True
        return not rows and _is_name_line(cells, below, options)
    heads = [cells[c] for c in numeric]
    if any(as_number(head, options) is None and head not in MISSING for head in heads):
        numbers = [c for c in numeric if as_number(cells[c], options) is not None]
        if any(map(_is_word, heads)) and all(_is_whole(cells[c], options) for c in numbers):
            return True
        if not numbers and not any(map(_is_mark, heads)):
            return True  # %, #, €
        names = [cells[c] for c in numbers], [below[c] for c in numbers]
        if any(map(_is_word, heads)) and _is_name_line(*names, options, 1):
            return True
        raise _ambiguous(cells)
    named = [c for c in numeric if cells[c]]
    if named and all(c in quoted for c in named):
        return True
    if heads[0] == "" and numeric[0] == 0 and len(heads) > 1 and not {*heads[1:]} & MISSING:
        # the header of a table of pandas, whose index has no name
        return _is_name_line(heads[1:], [below[c] for c in numeric[1:]], options, 2)
    if {*heads} & MISSING:
        raise UnreadableError(f"the first line, {_shown(cells)}, lacks numbers or names: {CURE}")
    labels = [c for c, cell in enumerate(cells) if c not in numeric and cell not in MISSING]
    if _is_name_line(heads, [below[c] for c in numeric], options):
        if any(_is_like(cells[c], below[c]) for c in labels):
            raise _ambiguous(cells)  # s1 above s2
        return True
    if any(as_number(cells[c], options) is None for c in labels):
        raise _ambiguous(cells)  # labels of rows, or names above them
    return False


def _is_name_line(
    cells: Sequence[str],
    columns: Sequence[Sequence[str]],
    options: TableOptions,
    min_names: int = MIN_NAMES,
) -> bool:
    """Return whether numbers are names of these columns. Raises UnreadableError if they may be."""
    numbers = [as_number(cell, options) for cell in cells]
    known = [number for number in numbers if number is not None]
    steps = [second - first for first, second in pairwise(known)]
    only_rise_or_fall = all(step > 0 for step in steps) or all(step < 0 for step in steps)
    if len(known) < max(min_names, len(cells)) or not only_rise_or_fall:
        return False
    finer = all(
        max((_decimals(as_number(cell, options)) for cell in column), default=0) > _decimals(number)
        for number, column in zip(numbers, columns, strict=True)
    )
    if _is_regular(known, steps):
        if finer:
            return True
        raise _ambiguous(cells)
    if finer:  # concentrations, or frequencies of octaves
        raise _ambiguous(cells)
    return False


def _is_regular(numbers: Sequence[Decimal], steps: Sequence[Decimal]) -> bool:
    """Return whether numbers are whole or equally spaced. Large steps may differ by rounding:
    9999.10, 9995.25, 9991.39."""
    if all(number == number.to_integral_value() for number in numbers):
        return True
    unit = Decimal(1).scaleb(-max(map(_decimals, numbers)))
    spread = max(steps, default=Decimal()) - min(steps, default=Decimal())
    return spread == 0 or (spread <= 2 * unit and min(map(abs, steps)) >= ROUNDED_STEPS * unit)


def _is_like(cell: str, column: Sequence[str]) -> bool:
    """Return whether a cell has digits and letters in the same places as those below it, such as
    the date of a row."""
    forms = {re.sub("[^\\W\\d_]+", "a", re.sub(r"\d+", "0", text)) for text in (cell, *column[:10])}
    return len(forms) == 1 and "0" in forms.pop()


def _is_whole(cell: str, options: TableOptions) -> bool:
    number = as_number(cell, options)
    return number is not None and number == number.to_integral_value()


def _is_word(cell: str) -> bool:
    """Return whether a cell is a word, and no mark of a missing value."""
    return any(map(str.isalpha, cell)) and not _is_mark(cell)


def _is_mark(cell: str) -> bool:
    """Return whether a cell stands for a value that is missing or no number."""
    return cell.casefold().strip("+-.") in MARKS


def _has_numbers(column: Sequence[str], options: TableOptions) -> bool:
    """Return whether cells are numbers or missing, and some are numbers."""
    observed = [cell for cell in column if cell not in MISSING]
    return bool(observed) and all(as_number(cell, options) is not None for cell in observed)


def as_number(cell: str, options: TableOptions) -> Decimal | None:
    """Return the finite number that a cell writes, or None."""
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


def _ambiguous(cells: Sequence[str]) -> UnreadableError:
    return UnreadableError(
        f"the first line, {_shown(cells)}, may be the names of the columns or data: {CURE}"
    )


def _shown(cells: Sequence[str]) -> str:
    return ",".join(cells[:MAX_SHOWN])[:80] + (",…" if len(cells) > MAX_SHOWN else "")

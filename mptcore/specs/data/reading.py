"""Options that say how a table is read: its header, separators, and the columns to leave out."""

import hashlib
from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Spec

ColumnName = Annotated[str, Field(max_length=200)]


class TableOptions(Spec):
    """Options for reading a .csv, .tsv or .parquet file."""

    header: bool | None = None
    """True if the first line of a text file has the names of the columns. null: decided by its
    cells."""
    sep: Literal[",", ";", "tab", "|"] | None = None
    """Separator of the cells in a text file. null: a comma in .csv, a tab in .tsv."""
    decimal: Literal[".", ","] = "."
    """Decimal separator of the numbers in a text file."""
    thousands: Literal[",", ".", " ", "'", "_"] | None = None
    """Separator of groups of three digits in a text file."""
    index: Annotated[tuple[ColumnName, ...], Field(max_length=100, strict=False)] = ()
    """Columns that identify the rows. They are no measurements: they are kept as ids."""
    drop_non_numeric: bool = False
    """True leaves out all columns that are not numbers."""

    def separator(self, format: str) -> str:
        """Return the separator of the cells in a text file."""
        return {"tab": "\t"}.get(self.sep or "", self.sep or SEPARATORS[format])

    def digest(self, format: str) -> str:
        """Return a digest of the options, empty for formats that have none. It differs from that of
        the same options in versions that decide in another way what is not given."""
        if format not in TABLE_FORMATS:
            return ""
        text = f"{RULES} {self.model_dump_json(exclude_defaults=True)}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_for_text(self) -> bool:
        """Return whether an option is set that only text files have."""
        of_text = ("header", "sep", "decimal", "thousands")
        return any(getattr(self, name) != type(self).model_fields[name].default for name in of_text)

    def problems(self, format: str) -> list[Problem]:
        """Return the contradictions between the options, and with the format of a file."""
        problems = []
        if self != DEFAULTS and format not in TABLE_FORMATS:
            problems.append(Problem("", f"a .{format} file has no columns: {ONLY_TABLES}"))
        elif self.is_for_text and format == "parquet":
            problems.append(Problem("", f"a .parquet file has its own types: {ONLY_TEXT}"))
        if self.thousands == self.decimal:
            problems.append(Problem("/thousands", f"not the same as decimal, {self.decimal!r}"))
        return problems


RULES = 1
"""Version of the rules that decide what the options leave open: headers, columns without names."""
OPTIONS_FILE = "reading.json"
"""Name of the file beside a stored table with the options that it is read with."""
SEPARATORS = {"csv": ",", "tsv": "\t"}
"""Separators of the cells in text files."""
TABLE_FORMATS = (*SEPARATORS, "parquet")
DEFAULTS = TableOptions()
ONLY_TABLES = "index, drop_non_numeric, header, sep, decimal and thousands are for tables"
ONLY_TEXT = "header, sep, decimal and thousands are for .csv and .tsv files"

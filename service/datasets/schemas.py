"""Bodies and answers about data sets."""

from typing import Annotated

from pydantic import Field

from service.schemas import Moment, Page, RequestModel, ResponseModel
from service.vocabulary import Visibility


class DatasetSummary(ResponseModel):
    """An upload in a list, without the names of its arrays and columns."""

    id: str
    """Id of the upload."""
    owner: str
    """Name of the owner."""
    visibility: Visibility
    """`private`; `project`: the members of its project may read it and compute with it; or `lab`:
    everyone in the lab may."""
    project: str | None
    """Name of the project that it was uploaded into. null: none."""
    name: str
    """File name."""
    format: str
    """Format: npy, npz, csv, tsv, parquet, txt or jsonl."""
    bytes: int
    """Size of the file in bytes."""
    sha256: str
    """SHA-256 of the file, in hexadecimal."""
    n: int
    """Number of observations; for text the number of lines or rows."""
    dim: int | None
    """Number of dimensions. null: text."""
    created_at: Moment
    """Time of the upload."""


class DatasetOut(DatasetSummary):
    """An upload. A spec names it by its `id`: numbers as the data source `upload`, texts as
    `text`."""

    arrays: dict[str, list[int]] | None
    """Shapes of the arrays of an .npz file, by name. null: another format."""
    columns: list[str] | None
    """Names of the columns of a table. null: not a table."""
    missing: dict[str, dict[str, int]] | None
    """Number of missing values of each column that has some: by array, `""` for the only one, and
    by name, or index from 0. null: none are missing."""
    summary: str
    """Sentence that states what was read: rows, columns, the header, what was left out."""
    header: bool | None
    """True if the first line has the names of the columns. null: not a text file of numbers."""
    ids: list[str]
    """Columns of a table that identify its rows. They are not among `columns`."""
    left_out: dict[str, str]
    """Other columns or arrays that are not used, with the reason."""
    warnings: list[str]
    """Sentences about values that were changed, and about rows and columns that may be mistakes."""


class DatasetChanges(RequestModel):
    """Changes to an upload. Omitted fields stay as they are."""

    visibility: Annotated[Visibility | None, Field(strict=False)] = None
    """`private`; `project`: the members of its project may read it and compute with it; or `lab`:
    everyone in the lab may. null: `project` if it is in a project, else `private`."""


class DatasetPage(Page):
    """A page of uploads."""

    items: list[DatasetSummary]
    """Uploads, newest first."""

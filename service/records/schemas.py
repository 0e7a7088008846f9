"""Request and response bodies of curves and scores of texts."""

from typing import Annotated, Any

from pydantic import Field

from service.schemas import Line, RequestModel, ResponseModel
from service.vocabulary import Status


class Downsampled(ResponseModel):
    """Counts of points before and after downsampling to `max_points`."""

    total_points: int
    """Number of points before downsampling."""
    sampled: bool
    """True if points were left out to keep to `max_points`."""


class SeriesOut(Downsampled):
    """A series, by column. Downsampling keeps the first and the last point and, of each of several
    even stretches, the smallest, the largest and the first missing value. It always keeps the same
    points."""

    name: str
    """Name of the series."""
    labels: dict[str, Any]
    """Labels that distinguish series of one name, such as seed."""
    x: list[float]
    """Position of each point: mask size, rate, epoch or step."""
    value: list[float | None]
    """Value of each point. null: not a finite number."""
    std_err: list[float | None]
    """Standard error of each point. null: unknown."""
    n: list[float]
    """Number of masks or draws of each point."""
    reasons: list[str | None] | None
    """For each point, the reason why a number is null. null: no number is null."""


class CurvesOut(Downsampled):
    """Curves of an experiment."""

    experiment_id: str
    """Id of the experiment."""
    status: Status
    """Its status."""
    last_seq: int
    """Pass it as `after` to get later points. It never falls, not even after a resumption."""
    partial: bool
    """True if the run has not ended."""
    series: list[SeriesOut]
    """Its series."""


Label = int | float | Line
"""Value of a label."""


class CurvesWanted(RequestModel):
    """A request for curves of several experiments."""

    ids: Annotated[
        list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=1000)
    ]
    """Ids of the experiments."""
    series: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=100)] | None = (
        None
    )
    """Names of the series to return. null: all."""
    labels: Annotated[
        dict[str, Label | Annotated[list[Label], Field(max_length=1000)]], Field(max_length=20)
    ] = Field({})
    """Required value of each label, or a list of allowed values. A series must match all labels."""
    max_points: Annotated[int, Field(ge=2, le=1_000_000)] = 100_000
    """Maximum number of points of all series together. More are downsampled."""


class ManyCurvesOut(Downsampled):
    """Curves of several experiments."""

    partial: bool
    """True if a run has not ended."""
    items: list[CurvesOut]
    """Curves, in the order of the ids."""


class TextsOut(ResponseModel):
    """A page of texts with their scores."""

    columns: list[str]
    """Names of the columns, in order."""
    items: list[dict[str, Any]]
    """Rows: the text, its counts of tokens, words and characters, its scores in nats, and a reason
    if a number is null."""
    total: int
    """Number of rows of the table, or of the group."""
    next_offset: int | None
    """Offset of the next page. null at the end."""

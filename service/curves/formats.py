"""Curves as JSON, CSV or an Arrow stream."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import Depends, Query, Request, Response

from mptcore.specs import Problem
from service.experiments.models import Experiment
from service.queue import states
from service.records.curves import Curve
from service.records.recording import COLUMNS
from service.records.spreadsheets import cell
from service.refusals import invalid
from service.web.media_types import accepted

Document = dict[str, Any]


class Format(StrEnum):
    """Format of an answer."""

    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


MEDIA_TYPES = {
    Format.JSON: "application/json",
    Format.CSV: "text/csv",
    Format.ARROW: "application/vnd.apache.arrow.stream",
}


async def wanted_format(
    request: Request,
    format: Annotated[
        Format | None, Query(description="Format of the answer. It overrides the Accept header.")
    ] = None,
) -> Format:
    """Return the format in the query, else the preferred one of the Accept header. Raises
    ApiError."""
    return format or accepted(request, MEDIA_TYPES)


FormatDep = Annotated[Format, Depends(wanted_format)]


@dataclass(frozen=True)
class Answer:
    """The curves of some experiments, up to their `last_seqs`. The form depends on whether they
    belong to one experiment or to a batch."""

    experiments: Sequence[Experiment]
    curves: Sequence[Curve]
    last_seqs: Mapping[str, int]
    batch: bool

    @property
    def partial(self) -> bool:
        return not all(states.is_terminal(one.status) for one in self.experiments)

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the metadata, for formats that have no place for it."""
        said = {
            "MPT-Partial": self.partial,
            "MPT-Sampled": any(curve.sampled for curve in self.curves),
            "MPT-Total-Points": sum(curve.total for curve in self.curves),
        }
        if not self.batch:
            said["MPT-Last-Seq"] = self.last_seqs[self.experiments[0].id]
        return {name: json.dumps(value) for name, value in said.items()}

    def document(self, with_numbers: bool) -> Document:
        """Return the answer's fields, and those of each series, with its numbers or without."""
        by_id: dict[str, list[Document]] = {one.id: [] for one in self.experiments}
        for curve in self.curves:
            about: Document = {
                "name": curve.name,
                "labels": curve.labels,
                "total_points": curve.total,
                "sampled": curve.sampled,
            }
            if with_numbers:
                about |= {name: np.ascontiguousarray(curve.columns[name]) for name in COLUMNS}
                about["reasons"] = curve.reason_of_each
            by_id[curve.experiment_id].append(about)
        items = [
            {
                "experiment_id": one.id,
                "status": one.status,
                "last_seq": self.last_seqs[one.id],
                "partial": not states.is_terminal(one.status),
                **_totals(by_id[one.id]),
                "series": by_id[one.id],
            }
            for one in self.experiments
        ]
        if not self.batch:
            return items[0]
        series = [one for item in items for one in item["series"]]
        return {"partial": self.partial, **_totals(series), "items": items}


def _totals(series: Sequence[Document]) -> Document:
    return {
        "total_points": sum(one["total_points"] for one in series),
        "sampled": any(one["sampled"] for one in series),
    }


MAX_TEXT_BYTES = 64 * 2**20
"""Maximum bytes of the texts that JSON and CSV repeat for each point: a point's reason in both, its
labels in CSV. An answer may have a million points."""


def written(answer: Answer, format: Format) -> Response:
    """Return the answer in a format. Raises ApiError."""
    content: bytes | memoryview
    if format != Format.ARROW:
        _check_texts(answer, format)
    match format:
        case Format.JSON:
            content = _json(answer)
        case Format.CSV:
            content = _csv(answer)
        case Format.ARROW:
            content = _arrow(answer)
    return Response(content, headers=answer.headers, media_type=MEDIA_TYPES[format])


def _check_texts(answer: Answer, format: Format) -> None:
    """Check the bytes of the repeated texts. Raises ApiError."""
    size = 0
    for curve in answer.curves:
        lengths = np.array([len(reason or "") for reason in curve.reasons])
        size += int(lengths[curve.columns["reason"]].sum())
        if format == Format.CSV:
            size += curve.shown * sum(len(str(value)) for value in curve.labels.values())
    if size > MAX_TEXT_BYTES:
        detail = (
            f"the reasons and labels of {sum(curve.shown for curve in answer.curves)} points take "
            f"{size >> 20} MiB as {format}, and at most {MAX_TEXT_BYTES >> 20} are written: lower "
            "max_points, or use format=arrow, which has each text once"
        )
        raise invalid([Problem("/query/max_points", detail)])


def _json(answer: Answer) -> bytes:
    """Encode as JSON with null for NaN. This is ten times as fast as pydantic, which needs
    lists."""
    return orjson.dumps(answer.document(with_numbers=True), option=orjson.OPT_SERIALIZE_NUMPY)


def _csv(answer: Answer) -> memoryview:
    import pyarrow as pa  # at its use: it would delay the start by a sixth of a second
    from pyarrow import csv

    sink = pa.BufferOutputStream()
    csv.write_csv(_table(answer, cell), sink)
    return memoryview(sink.getvalue())


def _arrow(answer: Answer) -> memoryview:
    import pyarrow as pa

    about = json.dumps(answer.document(with_numbers=False))
    table = _table(answer).replace_schema_metadata({"mptlab": about})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return memoryview(sink.getvalue())


def _table(answer: Answer, shown: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return a row for each point, with the series, each label, and in a batch the experiment in
    columns of their own. Texts are written as `shown`."""
    import pyarrow as pa

    counts = [curve.shown for curve in answer.curves]
    places = pa.array(np.repeat(np.arange(len(counts), dtype=np.int32), counts))

    def told(values: list[Any]) -> Any:
        """Repeat a value of each series for all its points."""
        array = pa.array([shown(one) for one in values])
        if array.type == pa.string():
            array = array.dictionary_encode()
        return array.take(places)

    columns = {name: told(values) for name, values in _keys(answer)}
    for name in COLUMNS:
        parts = [curve.columns[name] for curve in answer.curves] or [np.array([])]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        columns[name] = pa.array(whole, from_pandas=True)
    columns["reason"] = pa.chunked_array(
        [_reasons(pa, curve, shown) for curve in answer.curves],
        pa.dictionary(pa.int32(), pa.string()),
    )
    return pa.table(columns).unify_dictionaries().combine_chunks()


def _reasons(pa: Any, curve: Curve, shown: Callable[[Any], Any]) -> Any:
    """Return the reasons of a curve. The first entry means that there is no reason."""
    if not curve.columns["reason"].any():
        return pa.nulls(curve.shown, pa.dictionary(pa.int32(), pa.string()))
    codes = np.ma.masked_equal(curve.columns["reason"].astype(np.int32), 0) - 1
    reasons = pa.array([shown(one) for one in curve.reasons[1:]], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), reasons)


def _keys(answer: Answer) -> Iterator[tuple[str, list[Any]]]:
    """Yield the columns that identify the series, with one value for each series."""
    curves = answer.curves
    if answer.batch:
        status = {one.id: one.status for one in answer.experiments}
        yield "experiment_id", [curve.experiment_id for curve in curves]
        yield "status", [status[curve.experiment_id] for curve in curves]
        yield "last_seq", [answer.last_seqs[curve.experiment_id] for curve in curves]
    yield "series", [curve.name for curve in curves]
    for label in dict.fromkeys(label for curve in curves for label in curve.labels):
        values = [curve.labels.get(label) for curve in curves]
        kinds = {type(value) for value in values if value is not None}
        mixed = str in kinds and len(kinds) > 1
        yield label, [str(v) if mixed and v is not None else v for v in values]

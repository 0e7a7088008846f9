"""An ended experiment as a zip, with everything needed to compute it again."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from textwrap import indent
from threading import Lock
from typing import Any

from sqlalchemy.orm import Session
from zipstream import ZIP_DEFLATED, ZipStream

from mptcore.specs import Limits, stored_spec_if_known
from service.db.engine import Database
from service.experiments.models import Artifact, Experiment
from service.experiments.schemas import AttemptOut, EnvironmentOut
from service.records import results
from service.records.artifacts import file_of, whole_file
from service.records.results import MetricRow, parsed_labels
from service.records.spreadsheets import csv_text
from service.records.stored_records import (
    StoredSeries,
    record_lines,
    stored_points,
    stored_series,
)
from service.refusals import ApiError
from service.settings import Settings
from service.vocabulary import Status

MAX_ARTIFACT_BYTES = 100 * 2**20
"""Maximum total size of the artifacts in a bundle. The README names the omitted ones."""
LINES_TOGETHER = 1000
FAST = 1
"""Level of compression. The default takes four times as long, and its zips are 10 % smaller."""
ONE_AT_A_TIME = Lock()
"""Held while a part of a zip is built, so that zips of many points leave the processors to other
requests. Sending a part does not hold it."""
Row = Sequence[Any]
COMMAND = "python -m mptcore --work-dir again < spec.json > again.ndjson"
COMPARE = """grep -v '"record": "progress"' again.ndjson | diff records.ndjson -"""

README = """\
{title}

To compute it again, in the folder of this file:

    {command}

mptcore is part of mptlab-server. Compare the new records with the old ones:

    {compare}

This prints nothing if they are the same. Progress records are not stored, so they are left out. A
CPU with the same core, packages, vector instructions and threads gives the same lines, bit for bit.
On another machine the first line and the last digits differ, and on a GPU the last digits may
differ. A CPU and a GPU also give different random draws of VAEs.

It was computed with:
{environment}

It read the following files. MPT_DATA_DIR, MPT_MODELS_DIR and MPT_STORE are variables that name
folders; * stands for any name; weights below artifacts/ belong to the experiment of that id.
{inputs}

In this folder:
    spec.json         the spec
    records.ndjson    the records of the run, without progress{after}
    environment.json  the environment of each attempt
    curves.csv        the points of all series
    metrics.csv       the metrics of the run
    artifacts/        the files of the run, if any{left_out}
"""
NO_INPUTS = "    nothing: its data are simulated, in the spec, or part of a package"
UNKNOWN = "    unknown: it ran before this was recorded, or its runner did not start"


@dataclass(frozen=True)
class Bundle:
    """Contents of the zip. Points, logs and files are read while it is sent."""

    experiment: Experiment
    attempts: Sequence[AttemptOut]
    metrics: Sequence[MetricRow]
    series: Sequence[StoredSeries]
    artifacts: Sequence[Artifact]


def bundle(session: Session, experiment: Experiment) -> Bundle:
    """Return the bundle of an ended experiment."""
    return Bundle(
        experiment=experiment,
        attempts=[AttemptOut.of(one) for one in results.attempts(session, experiment.id)],
        metrics=results.metrics(session, experiment.id),
        series=stored_series(session, experiment.id),
        artifacts=results.artifacts(session, experiment.id),
    )


def zipped(database: Database, settings: Settings, made: Bundle) -> Iterator[bytes]:
    """Yield the zip while it is built. It is never held in memory as a whole, and a process builds
    parts of one zip at a time."""
    parts = _parts(database, settings, made)
    while True:
        with ONE_AT_A_TIME:
            part = next(parts, None)
        if part is None:
            return
        yield part


def _parts(database: Database, settings: Settings, made: Bundle) -> Iterator[bytes]:
    files, left_out = _files(settings, made.artifacts)
    folder = f"experiment-{made.experiment.id}"
    stream = ZipStream(compress_type=ZIP_DEFLATED, compress_level=FAST)
    environments = [one.model_dump(mode="json") for one in made.attempts]
    texts = {
        "README.txt": _readme(made.experiment, made.attempts, left_out),
        "spec.json": json.dumps(_spec(made.experiment), indent=2) + "\n",
        "environment.json": json.dumps({"attempts": environments}, indent=2) + "\n",
    }
    for name, text in texts.items():
        stream.add(text, f"{folder}/{name}")
    lines = record_lines(database, made.experiment.id, made.series)
    stream.add(_encoded(lines), f"{folder}/records.ndjson")
    stream.add(_encoded(_curve_lines(database, made)), f"{folder}/curves.csv")
    stream.add(_encoded(_metric_lines(made.metrics)), f"{folder}/metrics.csv")
    for name, file in files.items():
        stream.add_path(file, f"{folder}/artifacts/{name}")
    yield from stream


def _files(
    settings: Settings, artifacts: Sequence[Artifact]
) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the files of a bundle by name, and the reasons why other artifacts are left out."""
    files: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    room = MAX_ARTIFACT_BYTES
    for one in artifacts:
        file = file_of(settings, one)
        size = file.stat().st_size if file.is_file() else 0
        if size > room:
            left_out[one.file] = f"too large for a bundle ({size} bytes): it is under artifacts"
            continue
        try:
            files[one.file] = whole_file(settings, one)
            room -= size
        except ApiError as error:
            left_out[one.file] = error.detail
    return files, left_out


def _spec(experiment: Experiment) -> dict[str, Any]:
    """Return the spec in the form that the filter reads: in an envelope if it exceeds the filter's
    own limits. One that this version cannot read stays as it is stored."""
    spec = stored_spec_if_known(experiment.spec)
    if spec is None:
        return experiment.spec
    value = spec.model_dump(mode="json")
    return {"spec": value} if spec.limit_problems(Limits()) else value


def _encoded(lines: Iterator[str]) -> Iterator[bytes]:
    while some := "".join(islice(lines, LINES_TOGETHER)):
        yield some.encode()


def _curve_lines(database: Database, made: Bundle) -> Iterator[str]:
    """Yield the lines of a CSV of all points. A series' name and labels become text once."""
    keys = _keys(one.labels for one in made.series)
    yield csv_text([["series", *keys, "x", "value", "std_err", "n", "reason"]])
    heads = [
        csv_text([[one.name, *(one.labels.get(key) for key in keys)]])[:-1] for one in made.series
    ]
    for index, _, x, value, std_err, n, reason in stored_points(
        database, made.experiment.id, made.series
    ):
        shown = "" if value != value else value
        error = "" if std_err != std_err else std_err
        why = "\n" if reason is None else csv_text([[reason]])
        yield f"{heads[index]},{x},{shown},{error},{int(n)},{why}"


def _metric_lines(metrics: Sequence[MetricRow]) -> Iterator[str]:
    """Yield the lines of a CSV of the metrics."""
    keys = _keys(parsed_labels(one.labels) for one in metrics)
    yield csv_text([["name", *keys, "value", "std_err", "reason"]])
    for one in metrics:
        of = parsed_labels(one.labels)
        labels = [of.get(key) for key in keys]
        yield csv_text([[one.name, *labels, one.value, one.std_err, one.reason]])


def _keys(labels: Iterable[dict[str, Any]]) -> list[str]:
    return [*dict.fromkeys(key for one in labels for key in one)]


def _readme(
    experiment: Experiment, attempts: Sequence[AttemptOut], left_out: Mapping[str, str]
) -> str:
    """Return the README. `left_out` are the artifacts that are not included, with reasons."""
    said = [one.environment for one in attempts if one.environment is not None]
    latest = said[-1] if said else None
    return README.format(
        title=_title(experiment),
        command=COMMAND,
        compare=COMPARE,
        environment=UNKNOWN if latest is None else indent(_computed_with(latest), "    "),
        inputs=UNKNOWN if latest is None else _inputs(latest) or NO_INPUTS,
        after="" if experiment.status == Status.SUCCEEDED else ", until it ended",
        left_out="".join(
            f"\n    not here: {_one_line(name)}, {_one_line(why)}" for name, why in left_out.items()
        ),
    )


def _title(experiment: Experiment) -> str:
    name = "" if experiment.name is None else f" ({_one_line(experiment.name)})"
    title = f"Experiment {experiment.id}{name} {experiment.status}."
    if experiment.failure_kind is None:
        return title
    message = _one_line(experiment.failure_message or "")
    return f"{title}\nIts failure was {experiment.failure_kind}: {message}"


def _computed_with(found: EnvironmentOut) -> str:
    where = f"{found.cpu} ({found.cpu_capability}), {found.threads} threads"
    if found.gpu is not None:
        where += f"; {found.gpu}, driver {found.gpu_driver}, CUDA {found.cuda}"
    if found.resumed_from is not None:
        where += f"; started on {found.resumed_from}, so the last digits may differ"
        where += ", and between a CPU and a GPU the random draws of VAEs"
    if found.memory_was_short:
        where += "; short of memory, so the last digits may differ"
    packages = (f"{name} {version}" for name, version in found.packages.items())
    return "\n".join(map(_one_line, [f"core {found.core}", where, found.platform, *packages]))


def _inputs(found: EnvironmentOut) -> str:
    return "\n".join(
        f"    {_one_line(place)}\n        sha256 {_one_line(sha)}"
        for place, sha in found.inputs.items()
    )


def _one_line(text: str) -> str:
    """Return text that others wrote without line breaks and invisible characters: it cannot pass
    for a line of this file."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())

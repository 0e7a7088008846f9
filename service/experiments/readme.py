"""The README of a bundle."""

from collections.abc import Mapping, Sequence
from textwrap import indent

from service.experiments.schemas import AttemptOut, EnvironmentOut
from service.tables.experiments import Experiment, Status

COMMAND = "python -m mptcore --work-dir again < spec.json > again.ndjson"
COMPARE = """grep -v '"record": "progress"' again.ndjson | diff records.ndjson -"""

TEXT = """\
{title}

To compute it again, in the folder of this file:

    {command}

mptcore comes with mptlab-server. Its records are then compared by

    {compare}

which says nothing where they are the same: progress is not kept, so it is left out. With the same
core, packages, vector instructions and threads a CPU gives the same lines, bit for bit. Elsewhere,
and on a GPU, the last digits differ, between a CPU and a GPU what VAEs draw too, and the first line
names another machine.

It was computed with:
{environment}

It read what follows. MPT_DATA_DIR, MPT_MODELS_DIR and MPT_STORE are variables that name folders,
* is any name; weights below artifacts/ are an artifact of the experiment of that id.
{inputs}

In this folder:
    spec.json         what was computed
    records.ndjson    what the run printed, but for progress{after}
    environment.json  what each attempt was computed with
    curves.csv        the points of all series
    metrics.csv       the numbers of the whole run
    artifacts/        the files that it left, if any{left_out}
"""
NO_INPUTS = "    nothing: its data are drawn, are part of the spec or come with a package"
UNKNOWN = "    it is not known: it ran before this was kept, or its runner did not begin"


def readme(
    experiment: Experiment, attempts: Sequence[AttemptOut], left_out: Mapping[str, str]
) -> str:
    """Return the text. `left_out` are the artifacts that are not included, with reasons."""
    said = [one.environment for one in attempts if one.environment is not None]
    latest = said[-1] if said else None
    return TEXT.format(
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
        where += f"; begun on {found.resumed_from}, so that the last digits may differ"
        where += ", and between a CPU and a GPU what VAEs draw"
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

"""Options of `mpt submit` for the user's own numbers, without a spec."""

from pathlib import Path
from typing import Annotated

import typer

from mptlab.api import Client
from mptlab.checkpoints import is_folder, taken
from mptlab.commands.context import CommandContext, warn
from mptlab.errors import Json, Refused
from mptlab.sweeps import Sweep
from mptlab.tables import best_of, deciding, smallest_as_good
from mptlab.uploads import SEPARATORS, SUFFIXES, TEXT_SUFFIXES, missing_lines

MODELS = ("ppca", "factor_analysis")
"""Families that need no choices besides the latent dimensions."""

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        "--text",
        help=f"your numbers or texts: a file ({', '.join(SUFFIXES)}) or the name of an upload",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "--checkpoint",
        help=f"{' or '.join(MODELS)}, both ({','.join(MODELS)}), or an experiment that "
        "fitted a model: its name or id; for texts a checkpoint: a folder or a name",
    ),
]
LatentDim = Annotated[
    str | None,
    typer.Option(help="latent dimensions K, such as 3; several: 2..10"),
]
Columns = Annotated[
    str | None,
    typer.Option(help="columns to use, separated by commas; default: all"),
]
Index = Annotated[str | None, typer.Option(help="column to leave out, such as an id")]
Array = Annotated[str | None, typer.Option(help="array of an .npz file, by its name")]


def fitted_by(context: CommandContext, typed: str) -> Json:
    """Return the experiment of this name or id, whose model scores other data. Raises
    BadParameter."""
    try:
        return context.client.get(context.id(typed))
    except Refused as refused:
        if refused.reason != "not_found":
            raise
        if (sweep := context.sweep_or_none(typed)) is not None:
            told = f"{typed} is a sweep: give the id of one of its runs"
            raise typer.BadParameter(f"{told}{_best_runs(sweep)}") from None
        told = f"{refused}; or give {' or '.join(MODELS)}: other models need a spec file"
        raise typer.BadParameter(f"{told} (docs/spec.md)") from None


def columns_of(client: Client, fitted: Json) -> str | None:
    """Return the names of the columns that an experiment's model was fitted to, separated by
    commas: other files may have them in another order. None if they have no names."""
    data = fitted["spec"]["data"]
    names = data.get("columns")
    if names is None and data.get("dataset") and data.get("array") is None:
        try:
            names = client.dataset(data["dataset"])["columns"]
        except Refused:  # another member's
            return None
    return ",".join(names) if names and not any("," in name for name in names) else None


def _best_runs(sweep: Sweep) -> str:
    """Return the ids of a sweep's best run and of the smallest model as good."""
    rows = sweep.table()
    best = best_of(rows)
    if best is None:
        return ""
    told = f", such as the best, {rows[best.row]['experiment_id']}"
    smallest = smallest_as_good(best, rows, deciding(rows))
    if smallest is None or smallest is rows[best.row]:
        return told
    return f"{told}, or the smallest as good, {smallest['experiment_id']}"


def is_text(typed: str) -> bool:
    """Return whether a file or upload holds texts, by its name."""
    return typed.endswith(TEXT_SUFFIXES)


def checkpoint_of(model: str) -> str:
    """Return the name of a checkpoint; a folder is taken to the service of this machine. Raises
    BadParameter, ValueError."""
    if model in MODELS:
        raise typer.BadParameter("give the model of your texts: --model FOLDER, or a name")
    return taken(Path(model).expanduser()) if is_folder(model) else model


def names_of(typed: str | None) -> list[str] | None:
    return None if typed is None else [name.strip() for name in typed.split(",")]


def uploaded(client: Client, file: Path, columns: list[str] | None, index: str | None) -> Json:
    """Upload a file. Raises Refused, with advice for a column of text."""
    try:
        return client.upload(file, columns=columns, index=index)
    except Refused as refused:
        if file.suffix not in SEPARATORS or "is not numbers" not in str(refused):
            raise
        told = f"{refused}. To leave out a column: --index NAME"
        raise Refused({**refused.document, "detail": told}, refused.status) from None


def warn_of_missing(
    upload: Json, columns: list[str] | None = None, array: str | None = None
) -> None:
    """Print how many values of an upload are missing, if any, on stderr."""
    for line in missing_lines(upload, columns, array):
        warn(line)


def data_of(
    client: Client, typed: str, columns: str | None, index: str | None, array: str | None
) -> Json:
    """Upload a file, or refer to an upload. Return the `data` of a spec that uses it."""
    wanted = names_of(columns)
    source = "text" if is_text(typed) else "upload"
    data: Json = {"source": source, "dataset": typed}
    file = Path(typed)
    if file.suffix in SUFFIXES and not file.exists():
        warn(f"there is no file {typed}: it is taken as the name of an upload")
    if file.suffix in SEPARATORS and file.is_file():
        made = uploaded(client, file, wanted, index)
        warn_of_missing(made)
        return {**data, "dataset": made["id"]}
    if file.suffix in SEPARATORS and index is not None:
        raise typer.BadParameter(f"there is no file {typed}")
    if index is not None:
        raise typer.BadParameter("--index is for .csv and .tsv files: use --columns")
    if file.suffix in SUFFIXES and file.is_file():
        made = client.upload(file)
        warn_of_missing(made, wanted, array)
        data["dataset"] = made["id"]
    elif file.exists():
        known = ", ".join(SUFFIXES[:5])
        raise typer.BadParameter(f"{typed} is not a file of numbers: give one of {known}")
    if wanted is not None and source == "text":
        data["column"] = ",".join(wanted)
    elif wanted is not None:
        data["columns"] = wanted
    if array is not None:
        data["array"] = array
    return data

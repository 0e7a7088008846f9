"""Options of `mpt submit` for the user's own numbers, without a spec."""

import csv
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from mptlab.checkpoints import is_folder, taken
from mptlab.client import Client
from mptlab.commands.completion import MODELS, models
from mptlab.commands.context import CommandContext, warn
from mptlab.errors import Json, Refused
from mptlab.specs import (
    ARRAY_SUFFIXES,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    UPLOADED,
    kind_of_data,
    not_none,
)
from mptlab.sweeps import Sweep, run_of
from mptlab.text_files import FASTA_SUFFIXES
from mptlab.uploads import missing_lines, spec_for, spec_of_fitted, text_spec

MOST_LATENT_DIMS = 8
"""Maximum of the latent dimensions that are compared if the user gives none."""

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help=f"your numbers or texts: a file ({', '.join(UPLOADED)}) or the name of an upload",
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        "--text", help=f"your texts: a file ({', '.join(TEXT_SUFFIXES)}) or the name of an upload"
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "--checkpoint",
        help=f"{' or '.join(MODELS)}, both ({','.join(MODELS)}), or an experiment that "
        "fitted a model: its name or id; for texts a checkpoint: a folder or a name",
        autocompletion=models,
    ),
]
LatentDim = Annotated[
    str | None,
    typer.Option(
        help="latent dimensions K, such as 3; several: 2..10; default: 1 to 8, fewer if "
        "there are fewer columns"
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(help="columns to use, separated by commas; default: all that are numbers"),
]
Index = Annotated[
    list[str] | None,
    typer.Option(
        help="columns that identify the rows, such as id or id,batch: they are kept as ids and "
        "are no measurements; repeatable"
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="whether the first line has the names of the columns; default: decided by its cells",
    ),
]
Sep = Annotated[
    str | None, typer.Option(help="separator of the cells: , ; tab or |; default: by the ending")
]
Decimal = Annotated[str | None, typer.Option(help="decimal separator: . (default) or ,")]
Thousands = Annotated[
    str | None, typer.Option(help="separator of groups of three digits: , . ' _ or a space")
]
DropNonNumeric = Annotated[
    bool, typer.Option("--drop-non-numeric", help="leave out all columns that are not numbers")
]
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
            message = f"{typed} is a sweep: give the id of one of its runs"
            raise typer.BadParameter(f"{message}{_best_runs(sweep)}") from None
        names = typed.lower().replace("-", "_").split(",")
        near = [model for name in names for model in get_close_matches(name, MODELS, n=1)]
        if len(near) == len(names):
            message = f"{refused}; did you mean --model {','.join(near)}?"
            raise typer.BadParameter(message) from None
        message = f"{refused}; or give {' or '.join(MODELS)}: other models need a spec file"
        texts = "checkpoints score texts, with --text FILE or mpt score"
        raise typer.BadParameter(f"{message} (docs/spec.md); {texts}") from None


def columns_of(client: Client, fitted: Json) -> list[str] | None:
    """Return the names of the columns that an experiment's model was fitted to: other files may
    have them in another order. None if they have no names."""
    data = fitted["spec"]["data"]
    names = data.get("columns")
    if names is None and data.get("dataset") and data.get("array") is None:
        try:
            names = client.dataset(data["dataset"])["columns"]
        except Refused:  # another member's
            return None
    return names or None


def _best_runs(sweep: Sweep) -> str:
    """Return the ids of a sweep's best run and of the smallest model as good."""
    table = sweep.table_document()
    if (best := table["best"]) is None:
        return ""
    message = f", such as the best, {run_of(table, best['row'])}"
    if best["smallest"] in (None, best["row"]):
        return message
    return f"{message}, or the smallest as good, {run_of(table, best['smallest'])}"


def spec_of_data(
    context: CommandContext,
    typed: str,
    model: str,
    latent_dims: list[Any] | None,
    columns: list[str] | None,
    array: str | None,
    options: Json,
) -> tuple[Json, Json, Json | None]:
    """Upload a file of data, or use an upload, and return the spec that scores it, the fields that
    are swept, and the experiment that fitted the model, if it is one. Raises BadParameter."""
    client, families = context.client, model.split(",")
    if is_text(typed):
        checkpoint = checkpoint_of(model)
        return text_spec(data_of(client, typed, columns, array, options), checkpoint), {}, None
    if {*families} <= {*MODELS}:
        data = data_of(client, typed, columns, array, options)
        latent_dims = latent_dims or _usual_latent_dims(client, data)
        grid: Json = {"model.latent_dim": latent_dims}
        if len(families) > 1:
            grid["model.family"] = families
        is_swept = any(len(values) > 1 for values in grid.values())
        return spec_for(data, families[0], latent_dims[0]), grid if is_swept else {}, None
    fitted = fitted_by(context, model)
    if latent_dims is not None:
        raise typer.BadParameter(f"--latent-dim is that of {model}: leave it out")
    data = data_of(client, typed, columns or columns_of(client, fitted), array, options)
    return spec_of_fitted(data, fitted), {}, fitted


def _usual_latent_dims(client: Client, data: Json) -> list[int]:
    """Return the latent dimensions K that are compared unless the user chooses: as many as are
    quick and most data need, below the number of columns. Say which they are."""
    try:
        columns = len(data.get("columns") or ()) or client.dataset(data["dataset"])["dim"]
    except Refused:  # the submission says what is wrong with it
        columns = None
    most = MOST_LATENT_DIMS if columns is None else min(MOST_LATENT_DIMS, max(1, columns - 1))
    warn(f"latent dimensions K from 1 to {most} are compared: --latent-dim chooses others")
    return [*range(1, most + 1)]


def is_text(typed: str) -> bool:
    """Return whether a file or upload holds texts, by its name."""
    return typed.lower().endswith(TEXT_SUFFIXES)


def refuse_table_of_texts(typed: str, model: str) -> None:
    """Raise BadParameter if the texts are in a table, which would be read as numbers."""
    checkpoint = "NAME" if model in MODELS else model
    if typed.lower().endswith(FASTA_SUFFIXES):
        cure = f"mpt score {typed} --checkpoint {checkpoint}"
        raise typer.BadParameter(f"{cure} scores the sequences of a FASTA file")
    if kind_of_data(typed) == "table":
        cure = f"mpt score {typed} --column COLUMN --checkpoint {checkpoint} scores each text of it"
        message = f"{typed} is a table: {cure}. For one curve of all texts, write them to a .txt or"
        raise typer.BadParameter(f"{message} .jsonl file")


def checkpoint_of(model: str) -> str:
    """Return the name of a checkpoint; a folder is taken to the service of this machine. Raises
    BadParameter, ValueError."""
    if model in MODELS:
        raise typer.BadParameter("give the model of your texts: --model FOLDER, or a name")
    return taken(Path(model).expanduser()) if is_folder(model) else model


def names_of(typed: str | None) -> list[str] | None:
    """Return names that are separated by commas; a name with a comma stands in double quotes."""
    if typed is None:
        return None
    return [name.strip() for name in next(csv.reader([typed], skipinitialspace=True), [])]


def reading_options(
    index: list[str] | None,
    header: bool | None,
    sep: str | None,
    decimal: str | None,
    thousands: str | None,
    drop_non_numeric: bool,
) -> Json:
    """Return the options of `Client.upload` that were given."""
    names = [name for typed in index or () for name in names_of(typed) or ()]
    return not_none(index=names or None, header=header, sep=sep, decimal=decimal,
                    thousands=thousands, drop_non_numeric=drop_non_numeric or None)  # fmt: skip


def warn_of_missing(
    upload: Json, columns: list[str] | None = None, array: str | None = None
) -> None:
    """Print how many values of an upload are missing, if any, on stderr."""
    for line in missing_lines(upload, columns, array):
        warn(line)


def data_of(
    client: Client, typed: str, columns: list[str] | None, array: str | None, options: Json
) -> Json:
    """Upload a file with the options to read it, or refer to an upload. Return the `data` of a spec
    that uses it."""
    source = "text" if is_text(typed) else "upload"
    data: Json = {"source": source, "dataset": typed}
    file = Path(typed)
    is_known = file.suffix.lower() in UPLOADED
    if is_known and file.is_file():
        if columns is not None and file.suffix.lower() in TABLE_SUFFIXES:
            options = {**options, "drop_non_numeric": True}  # the chosen columns are numbers
        upload = client.upload(file, **options)
        warn_of_missing(upload, columns, array)
        data["dataset"] = upload["id"]
    elif file.exists():
        known = ", ".join((*TABLE_SUFFIXES, *ARRAY_SUFFIXES))
        raise typer.BadParameter(f"{typed} is not a file of numbers: give one of {known}")
    elif options and is_known:
        raise typer.BadParameter(f"there is no file {typed}")
    elif options:
        cure = "leave out --index and the other options of reading"
        raise typer.BadParameter(f"{typed} is no file, and an upload was read already: {cure}")
    elif is_known:
        warn(f"there is no file {typed}: it is taken as the name of an upload")
    if columns is not None and source == "text":
        data["column"] = ",".join(columns)
    elif columns is not None:
        data["columns"] = columns
    if array is not None:
        data["array"] = array
    return data

"""Commands that score texts, and show the scores of texts and of rows."""

import os
import re
from collections.abc import Iterator
from itertools import combinations
from math import hypot
from pathlib import Path
from typing import Annotated

import typer

from mptlab.commands.completion import checkpoints
from mptlab.commands.context import (
    CommandContext,
    ExperimentId,
    flags_named,
    print_table,
    warn,
    with_context,
    write_csv,
)
from mptlab.commands.own_data import checkpoint_of
from mptlab.commands.submitting import InProject
from mptlab.errors import Json, Refused
from mptlab.paired import ERROR, Paired
from mptlab.specs import not_none
from mptlab.tables import few_digits, for_people
from mptlab.text_files import FASTA_SUFFIXES, read_fasta
from mptlab.text_tables import SUFFIXES, TextTable, is_file, read_texts
from mptlab.texts import Texts, single_mutations

app = typer.Typer()

Csv = Annotated[Path | None, typer.Option("--csv", help="write all rows to a file")]
P_VALUE = "share of the rows of the model that are at least as unlikely"
UNUSUAL_COLUMNS = (
    "how many standard deviations a value is from what the others of its row predict, of rows with "
    "a p value below 0.05; a wrong value also makes others look wrong, so the first counts most"
)
DECIDED = "whether the best text of its group is better than each other one at 95 %"
MAX_PAIRED = 20
"""Maximum number of texts whose pairs are compared, and that are printed beside a file."""
HIDDEN = ("words", "characters")
"""Columns that are left out of a printed table. --csv and --json have them."""


@app.command()
@with_context
def texts(
    context: CommandContext,
    experiment_id: ExperimentId,
    top: Annotated[int, typer.Option(help="number of rows to print", min=1)] = 20,
    order: Annotated[
        str | None, typer.Option(help="such as row, -pll; default: the first score, highest first")
    ] = None,
    group: Annotated[str | None, typer.Option(help="only the texts of this group")] = None,
    csv_: Csv = None,
) -> None:
    """Show the scores of each text of an experiment."""
    experiment = context.client.experiments.get(context.id(experiment_id, newest=True))
    if csv_ is not None:
        write_csv(csv_, experiment.texts(order=order or "row", group=group).by_column())
        return
    if order is None:
        scored = (experiment.spec.get("evaluate") or {}).get("texts") or {"scores": ["row"]}
        order = f"-{scored['scores'][0]}"
    _show(context, experiment.texts(order=order, limit=top, group=group))


@app.command()
@with_context
def rows(
    context: CommandContext,
    experiment_id: ExperimentId,
    top: Annotated[int, typer.Option(help="number of rows to print", min=1)] = 20,
    csv_: Csv = None,
) -> None:
    """Show the log-likelihood of each row, the least usual first, of a run that scored data with
    the model of another: mpt submit --data new.csv --model mine. Rows count from 0."""
    try:
        scored = context.client.rows(context.id(experiment_id, newest=True))
    except Refused as refused:
        if refused.reason != "not_found" or "file" not in str(refused):
            raise
        advice = f"to score rows: mpt submit --data FILE --model {experiment_id}"
        raise typer.BadParameter(f"{experiment_id} has no scores of rows; {advice}") from None
    columns = scored[0] if scored else {}
    if csv_ is not None:
        written = [*map(_with_text, scored)]
        write_csv(csv_, {name: [row[name] for row in written] for name in columns})
        if str(csv_) == "-":
            return
    scored.sort(key=lambda row: (row["p_value"], row["log_likelihood"]))
    least = scored[:top]
    context.show(
        least if context.as_json else [few_digits(_with_text(row)) for row in least], *columns
    )
    if not context.as_json:
        if len(least) < len(scored):
            typer.echo(f"{len(least)} of {len(scored)} rows; --top prints more")
        rare = 1 / len(scored)
        typer.echo(f"p value: {P_VALUE}; of {len(scored)} usual rows one is below {rare:.2g}")
        typer.echo(f"unusual columns: {UNUSUAL_COLUMNS}")


def _with_text(row: Json) -> Json:
    """Return a row with its unusual columns as one text."""
    return row | {"unusual_columns": "; ".join(row["unusual_columns"])}


@app.command()
@with_context
def score(
    context: CommandContext,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "--checkpoint",
            help="your folder, a folder in MPT_MODELS_DIR, or an id of the hub; two, as a,b, are "
            "compared",
            autocompletion=checkpoints,
        ),
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="texts, or one file: lines, a table, FASTA"),
    ] = None,
    score: Annotated[
        list[str] | None,
        typer.Option(
            help="pll (default), pll_word_l2r, unmasked, cumulative; of mutations masked_marginal "
            "(default), wild_type_marginal; repeatable"
        ),
    ] = None,
    target_std_err: Annotated[
        float | None,
        typer.Option(
            help="standard error of each cumulative score, in nats, such as 1; half of it takes "
            "four times as long"
        ),
    ] = None,
    relative: Annotated[
        bool, typer.Option(help="--target-std-err is a fraction of each score, such as 0.01")
    ] = False,
    group_size: Annotated[
        int | None, typer.Option(help="texts of a group: 2 compares each pair")
    ] = None,
    wild_type: Annotated[
        str | None,
        typer.Option(
            help="a sequence, or a FASTA file with one: the texts are mutations of it, such as "
            "A24G or A24G:K30R; without texts, all changes of one amino acid"
        ),
    ] = None,
    window_overlap: Annotated[
        int | None,
        typer.Option(
            help="read texts that are too long for the model in windows that share so many tokens, "
            "such as 128"
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="column of a table with the texts; default: the only one with text"),
    ] = None,
    sep: Annotated[
        str | None, typer.Option(help="character between the cells of a .csv or .tsv file")
    ] = None,
    project: InProject = None,
    csv_: Csv = None,
    plot: Annotated[
        Path | None, typer.Option(help="of two models: draw the differences: .pdf, .svg or .png")
    ] = None,
) -> None:
    """Score texts, or mutations, by a masked language model, and print a table; or by two, and
    print the difference for each text."""
    if wild_type is not None:
        wild_type = sequence_of(wild_type)
    elif not texts:
        raise typer.BadParameter("give texts, a file of texts, or --wild-type")
    scores = score or ["pll" if wild_type is None else "masked_marginal"]
    if "cumulative" in scores and target_std_err is None:
        raise typer.BadParameter("cumulative needs --target-std-err, in nats, such as 1")
    if texts:
        table = table_of(texts, column, sep)
    else:
        table = TextTable(single_mutations(wild_type or ""))
    for note in table.notes:
        warn(note)
    options = not_none(target_std_err=target_std_err, relative=relative or None,
                       group_size=group_size, wild_type=wild_type,
                       window_overlap=window_overlap)  # fmt: skip
    stem = Path(texts[0]).stem if texts and len(texts) == 1 and is_file(texts[0]) else None
    models = [model] if Path(model).expanduser().is_dir() else model.split(",")
    if len(models) > 2 or (plot is not None and len(models) < 2):
        raise typer.BadParameter("two models are compared, and drawn: --model a,b --plot FILE.pdf")
    if len(models) == 2 and len(scores) > 1:
        raise typer.BadParameter("two models are compared by one score: give --score once")
    by_model = []
    for one in models:
        name = stem and f"{stem} by {Path(one).name}"
        try:
            with flags_named({"/spec/model/checkpoint": "--model"}):
                scored = context.client.score(
                    table, checkpoint_of(one), scores, name=name, project=project, **options
                )
        except KeyboardInterrupt:
            warn("a run that was queued continues: mpt list shows it, mpt cancel ends it")
            raise
        for note in scored.notes[len(table.notes) :]:
            warn(note)
        typer.echo(scored.experiment_id, err=True)
        by_model.append(scored)
    if len(models) == 2:
        first, second = by_model
        short = [Path(one).name for one in models]
        label, other = short if short[0] != short[1] else models
        paired = Paired((first, second), (label, other), scores[0])
        return _show_paired(context, paired, csv_, plot)
    if csv_ is not None:
        write_csv(csv_, scored.by_column())
    if csv_ is None or (str(csv_) != "-" and len(scored) <= MAX_PAIRED):
        _show(context, scored, target_std_err, relative)


def _show_paired(
    context: CommandContext, paired: Paired, csv_: Path | None, plot: Path | None
) -> None:
    """Print the differences of the texts and their sum, or write all to a file."""
    if plot is not None:
        paired.plot(plot)
    if csv_ is not None:
        names = paired[0] if paired else ()
        write_csv(csv_, {name: [row[name] for row in paired] for name in names})
    if context.as_json:
        total, error = paired.total
        return context.dump({"texts": paired, "sum": total, "sum_std_err": error})
    if csv_ is None:
        known = [
            {name: value for name, value in row.items() if value is not None or ERROR not in name}
            for row in paired
        ]
        rows = [few_digits(row) for row in for_people(known, ERROR)]
        context.show(rows, *(rows[0] if rows else ()))
    for line in paired.lines():
        typer.echo(line, err=str(csv_) == "-")


def table_of(texts: list[str], column: str | None, separator: str | None) -> TextTable:
    """Return the texts, or those of a file."""
    files = [text for text in texts if text.lower().endswith(SUFFIXES) and is_file(text)]
    if len(texts) > 1 and files:
        raise typer.BadParameter(f"{files[0]} is a file: give one file, or texts")
    if is_file(texts[0]):
        return read_texts(Path(texts[0]), column, separator)
    if len(texts) == 1 and texts[0].lower().endswith(SUFFIXES) and not re.search(r"\s", texts[0]):
        raise typer.BadParameter(f"there is no file {texts[0]}")
    if len(texts) == 1 and "/" in texts[0] and os.path.isdir(texts[0]):
        raise typer.BadParameter(f"{texts[0]} is a folder: give a text, or a file of texts")
    if column is not None or separator is not None:
        raise typer.BadParameter("--column and --sep are for a file with a table")
    return TextTable(texts)


def sequence_of(given: str) -> str:
    """Return a sequence, or the only one of a FASTA file. What is changed in it is printed."""
    if not is_file(given):
        if given.lower().endswith(FASTA_SUFFIXES):
            raise typer.BadParameter(f"there is no file {given}")
        return given
    fasta = read_fasta(Path(given))
    if len(fasta.sequences) > 1:
        raise typer.BadParameter(f"{given} has several sequences: give a file with one")
    if not any(fasta.sequences):
        raise typer.BadParameter(f"{given} has no sequence in it")
    for note in fasta.notes:
        warn(note)
    return fasta.sequences[0]


def _show(
    context: CommandContext, texts: Texts, target: float | None = None, relative: bool = False
) -> None:
    if context.as_json:
        context.dump(texts)
        return
    rows = [few_digits(row) for row in for_people(texts, ERROR)]
    columns = [
        name
        for name in texts.columns
        if name not in HIDDEN and any(row.get(name) is not None for row in rows)
    ]
    if not any(row.get("unknown") for row in texts):
        columns = [name for name in columns if name != "unknown"]
    print_table(columns, ([row[name] for name in columns] for row in rows))
    if "decided" in columns:
        typer.echo(f"decided: {DECIDED}")
    for line in (*_compared(texts), *_over_target(texts, target, relative)):
        typer.echo(line)


def _compared(texts: Texts) -> Iterator[str]:
    """Yield the text with the highest score that has errors, and the pairs of texts that their
    errors do not tell apart. Texts of groups are compared within their groups only."""
    for name in texts.columns:
        error = f"{name}{ERROR}"
        known = [row for row in texts if row[name] is not None and row.get(error) is not None]
        if error not in texts.columns or len(known) < 2 or "group" in texts.columns:
            continue
        best = max(known, key=lambda row: float(row[name]))
        yield f"* highest {name}: row {best['row']}"
        alike = [
            f"{row['row']}~{other['row']}"
            for row, other in combinations(known[:MAX_PAIRED], 2)
            if abs(row[name] - other[name]) <= 2 * hypot(row[error], other[error])
        ]
        if alike and len(known) <= MAX_PAIRED:
            yield f"  not told apart by two standard errors of the difference: {', '.join(alike)}"


def _over_target(texts: Texts, target: float | None, relative: bool) -> Iterator[str]:
    """Yield how many texts have a larger error than the target of the cumulative score."""
    if target is None:
        return
    known = [row for row in texts if row.get(f"cumulative{ERROR}") is not None]
    limits = (target * abs(row["cumulative"]) if relative else target for row in known)
    over = sum(row[f"cumulative{ERROR}"] > limit for row, limit in zip(known, limits, strict=True))
    if over:
        reason = "their scores vary more than the first ones showed, or max_masks was reached"
        yield f"  {over} of {len(known)} texts have a larger error than the target: {reason}"

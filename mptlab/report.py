"""Write a report on the presets that ran: Markdown with pictures beside it, and one HTML page that
contains everything."""

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

from mptlab import __version__
from mptlab.curves import needed
from mptlab.errors import Json
from mptlab.reproduce import Outcome
from mptlab.tables import HALF_WIDTH, with_error

MORE = {
    "fig3-linear": "docs/vaes.md, “The paper's Fig. 3”",
    "fig3-vae": "docs/vaes.md, “The paper's Fig. 3”",
    "small-bert": "docs/language-models.md, “Results so far”",
    "uniform-against-fixed": "docs/language-models.md, “Results so far”",
    "coheren": "docs/language-models.md, “Results so far”",
    "unbiased-rate": "docs/estimators.md, “One fixed rate”",
    "mask-designs": "docs/estimators.md, “Which masks”",
    "model-choice": "docs/estimators.md, “Choosing a model”",
    "training-rates": "docs/estimators.md, “Choosing a model”",
}
"""Page that discusses a result, by the beginning of a preset's name."""
ORDER = ("agrees", "cannot tell", "differs", "incomplete", "ran in short", "did not run")
RULE = """\
Each verdict is computed from numbers. A figure *agrees* if its whole 95 % interval is between the
two bounds, which come from the published figure and a stated margin; it *differs* if the interval
is completely outside; otherwise the verdict is *cannot tell*. A preset agrees if all its figures
agree, and differs if one of them does. Each figure is tested at 95 % by itself, without a
correction for the number of figures: a preset agrees only if all of them do, so that a preset of
which one figure is a margin or more away is found to agree in at most 5 % of cases, if seeds
differ normally. Where a few seeds differ much more than the others, it may be 11 to 23 % with
three to five seeds. The power is the probability to find agreement where it is true. Figures
without a sampling error have an interval of width 0 and power 1.
"""
STYLE = """\
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff;
       font: 16px/1.55 system-ui, sans-serif }
h1, h2 { line-height: 1.25; text-wrap: balance } h2 { margin-top: 3rem }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums;
        display: block; overflow-x: auto }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; border-bottom: 1px solid #ddd }
td + td + td, th + th + th { white-space: nowrap } img { max-width: 100% } code { font-size: .9em }
.agrees { color: #00674b } .differs { color: #a33f00 } .cannot-tell, .incomplete { color: #6f5700 }
.did-not-run, .ran-in-short { color: #666 }
"""


def write(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write report.md, report.html and the pictures. Return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {outcome.name: _picture(outcome, folder) for outcome in outcomes}
    text = "\n".join(_lines(outcomes, pictures))
    (folder / "report.md").write_text(text, encoding="utf-8")
    page = folder / "report.html"
    page.write_text(_page(text, folder), encoding="utf-8")
    return page


def counted(outcomes: Sequence[Outcome]) -> str:
    """Return one line that counts the verdicts: `11 agree, …`."""
    counts = Counter(outcome.status for outcome in outcomes)
    return ", ".join(f"{counts[status]} {status}" for status in ORDER if counts[status])


def _picture(outcome: Outcome, folder: Path) -> str | None:
    """Draw a preset's curves or figures, and return the name of the file."""
    needed("matplotlib", "plots")
    from mptlab import plots, report_plots

    comparisons = outcome.verdict["comparisons"] if outcome.verdict else []
    figure = report_plots.picture(outcome.preset, outcome.curves, comparisons)
    if figure is None:
        return None
    name = f"{outcome.name}.svg"
    plots.save(figure, folder / name)
    return name


def _lines(outcomes: Sequence[Outcome], pictures: dict[str, str | None]) -> Iterator[str]:
    today = f"{datetime.now(UTC):%-d %B %Y}"
    yield "# On Masked Pre-training and the Marginal Likelihood, reproduced\n"
    yield (
        "Moreno-Muñoz, Recasens and Hauberg (NeurIPS 2023) show that masked scores, summed over "
        "all mask sizes, are the log marginal likelihood (LML). This report has the tables and "
        "figures of their paper, computed again, and claims of our own.\n"
    )
    yield f"**{counted(outcomes)}.**\n"
    yield f"Made by `mpt reproduce` of MPT Lab {__version__} on {today}. {_machines(outcomes)}\n"
    yield RULE
    parts = {
        "The paper": [outcome for outcome in outcomes if _is_published(outcome)],
        "Questions that the paper leaves open": [
            outcome for outcome in outcomes if not _is_published(outcome)
        ],
    }
    for title, part in parts.items():
        if part:
            yield f"**{title}**\n"
            yield "| preset | what | verdict | time |\n|---|---|---|---|"
            for outcome in part:
                what = f"[{outcome.preset['title']}](#{_slug(outcome.preset['title'])})"
                yield f"| {outcome.name} | {what} | {outcome.status} | {_time(outcome.seconds)} |"
            yield ""
    for part in parts.values():
        for outcome in part:
            yield from _section(outcome, pictures[outcome.name])


def _is_published(outcome: Outcome) -> bool:
    return outcome.name.startswith(("table", "fig"))


def _slug(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    kept = (character for character in title.lower() if character.isalnum() or character in " -_")
    return "".join(kept).replace(" ", "-")


def _section(outcome: Outcome, picture: str | None) -> Iterator[str]:
    yield f"\n## {outcome.preset['title']}\n"
    yield f"*{'Published' if _is_published(outcome) else 'Claim'}:* {outcome.preset['statement']}\n"
    if outcome.failure is not None:
        yield f"**Did not run:** {outcome.failure}\n"
        return
    yield f"**{outcome.status.capitalize()}.** The experiments took {_time(outcome.seconds)}.\n"
    if outcome.is_short:
        yield "A short form ran, to show that the preset works here. It has no verdict.\n"
    more = next((page for name, page in MORE.items() if outcome.name.startswith(name)), None)
    if more is not None:
        yield f"What it means: {more}.\n"
    if outcome.verdict is not None:
        yield from _verdict(outcome.verdict, "published" if _is_published(outcome) else "claimed")
    if picture is not None:
        yield f"![{outcome.preset['title']}]({picture})\n"
    ids = ", ".join(f"`{experiment_id}`" for experiment_id in dict.fromkeys(outcome.ids))
    yield f"All data of an experiment, and the commands that repeat it, are in its bundle: {ids}.\n"


def _verdict(verdict: Json, stated: str) -> Iterator[str]:
    if verdict["missing"]:
        yield f"Incomplete: {verdict['missing']}.\n"
    if verdict["comparisons"]:
        yield f"| | {stated} | measured | agrees from | to | outcome | power |"
        yield "|---|---|---|---|---|---|---|"
    for comparison in verdict["comparisons"]:
        measured = with_error(comparison["measured"], comparison["half_width"]) or "–"
        bounds = (_number(comparison[name]) for name in ("low", "high"))
        cells = (comparison["what"], f"{comparison['published']:g}", measured, *bounds,
                 comparison["outcome"], f"{comparison['power']:.0%}")  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield ""
    if any(comparison["half_width"] for comparison in verdict["comparisons"]):
        yield f"{HALF_WIDTH}.\n"


def _machines(outcomes: Sequence[Outcome]) -> str:
    """Return what the experiments ran on, from the environments that they recorded."""
    runs = {run["id"]: run for outcome in outcomes for run in outcome.ended}
    attempts = (attempt for run in runs.values() for attempt in run["attempts"])
    environments = [attempt["environment"] for attempt in attempts if attempt["environment"]]
    if not environments:
        return ""
    devices = dict.fromkeys(each["gpu"] or each["cpu"] for each in environments)
    torch = dict.fromkeys(f"torch {each['packages']['torch']}" for each in environments)
    seconds = Outcome({}, ended=[*runs.values()]).seconds
    return (
        f"Experiments ran on {', '.join([*devices, *torch])}; they took {_time(seconds)}, if those "
        "that ran at the same time are added."
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _page(text: str, folder: Path) -> str:
    """Return the report as one HTML page that contains its pictures."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for token in (inner for outer in tokens for inner in outer.children or ()):
        if token.type == "image":
            content = (folder / str(token.attrs["src"])).read_bytes()
            token.attrs["src"] = f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"
        if token.type == "text" and token.content in ORDER:
            slug = token.content.replace(" ", "-")
            token.type, token.content = "html_inline", f'<b class="{slug}">{token.content}</b>'
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrs["id"] = _slug(inline.content)
    title = escape(tokens[1].content)
    body = markdown.renderer.render(tokens, markdown.options, {})
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n{body}</body></html>\n"
    )

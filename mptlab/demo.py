"""`make demo`: run the paper's Table 1 and a real data set through the whole service."""

import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mptlab import plots, serve
from mptlab.client import Client
from mptlab.progress import shown_progress

OUTPUT = Path("demo-output")

SEEDS = [4, 44, 444, 4444, 44444]

PAPER = {1: (-60.44, 0.47), 10: (-60.22, 0.12), 100: (-60.34, 0.03)}
"""Table 1 of the paper: mean and sd over the mask seeds of the cumulative MPT score, by P."""

PAPER_LML = -60.34


def table1(per_size: int) -> dict[str, Any]:
    """Return the spec of a column of Table 1."""
    truth = {"latent_dim": 5, "noise_precision": 5.0}
    data = {"source": "ppca", "n": 1000, "dim": 200, "noise": "shared", "seed": 1991}
    return {
        "model": {"family": "ppca", "init": "generator", **truth},
        "data": {**data, **truth},
        "evaluate": {"masks": {"schedule": "all", "per_size": per_size}},
        "seeds": SEEDS,
    }


DIGITS = {
    "model": {"family": "ppca", "latent_dim": 10, "init": "maximum_likelihood"},
    "data": {"source": "digits"},
    "evaluate": {"masks": {"schedule": "all", "per_size": 100}},
    "seeds": [4],
}


def main() -> None:
    console = Console()
    shutil.rmtree(OUTPUT, ignore_errors=True)  # nothing of an earlier demo is used
    OUTPUT.mkdir()
    began = time.monotonic()
    port = serve.free_port()
    with serve.embedded(OUTPUT / "store", port, OUTPUT / "service.log"):
        key = serve.store_key(OUTPUT / "store")
        with Client(f"http://127.0.0.1:{port}", key) as client:
            serve.wait_until(client.is_ready)
            console.print(f"serving {client.url}")
            _run(client, console)
    console.print(f"{time.monotonic() - began:.1f} s in all")
    console.print("next: `make serve`, then README's first experiment in another terminal")
    console.print(f"to see these curves in a browser: MPT_STORE={OUTPUT / 'store'} make serve")


def _run(client: Client, console: Console) -> None:
    ids = {f"table1 P={p}": client.submit(table1(p), name=f"table1 P={p}")["id"] for p in PAPER}
    ids["digits K=10"] = client.submit(DIGITS, name="digits K=10")["id"]
    with shown_progress(sys.stdout) as show:
        ended = {name: client.wait(i, timeout_s=300, on_change=show) for name, i in ids.items()}
    for name, experiment in ended.items():
        if experiment["status"] != "succeeded":
            raise SystemExit(f"{name} {experiment['status']}: {experiment['failure']}")
    console.print(_table(ended))
    for name, title, file in (
        ("table1 P=100", "Table 1 of the paper, P = 100", "table1.png"),
        ("digits K=10", "Handwritten digits, PPCA with K = 10", "digits.png"),
    ):
        plots.save(plots.draw(client.curves(ids[name], "score"), "scores", title), OUTPUT / file)
    console.print(f"plots: {OUTPUT / 'table1.png'}, {OUTPUT / 'digits.png'}")


def _table(ended: dict[str, dict[str, Any]]) -> Table:
    title = "nats per observation; ± is the sd over mask seeds, s.e. the standard error"
    table = Table(title=title, box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for heading in ("LML", "paper", "MPT score", "paper", "s.e.", "diff."):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, experiment in ended.items():
        means = {row["title"]: row for row in experiment["summary"]}
        lml, mpt, std_err = means["lml"]["value"], means["mpt"]["value"], means["mpt"]["std_err"]
        scores = [row["value"] for row in experiment["metrics"] if row["name"] == "mpt"]
        spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
        per_size = experiment["spec"]["evaluate"]["masks"]["per_size"]
        published = experiment["spec"]["data"]["source"] == "ppca"
        table.add_row(
            name,
            f"{lml:.3f}",
            f"{PAPER_LML:.2f}" if published else "",
            f"{mpt:.3f}{spread}",
            "{:.2f} ± {:.2f}".format(*PAPER[per_size]) if published else "",
            "–" if std_err is None else f"{std_err:.3f}",
            f"{mpt - lml:+.3f}",
        )
    return table


if __name__ == "__main__":
    main()

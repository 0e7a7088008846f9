"""`python -m benchmarks [NAME …] [--threads T]`: one table and the cost plots."""

import argparse
import sys
from pathlib import Path

from benchmarks import diffusion, language, latent, minicons, tractable
from benchmarks.table import Row, SkippedError, markdown

BENCHMARKS = {
    **tractable.BENCHMARKS,
    **latent.BENCHMARKS,
    **language.BENCHMARKS,
    **minicons.BENCHMARKS,
    **diffusion.BENCHMARKS,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [*BENCHMARKS, "plots"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("bench-output"))
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = options.names or names
    options.output.mkdir(parents=True, exist_ok=True)
    rows, skipped = measured([name for name in chosen if name != "plots"], options.threads)
    table = markdown(rows, skipped, options.threads)
    (options.output / "benchmarks.md").write_text(table)
    print(table)
    if "plots" in chosen:
        from benchmarks.plots import plot  # matplotlib is slow to load

        print(*plot(options.threads, options.output), sep="\n")
    return 0 if all(row.met for row in rows) else 1


def measured(names: list[str], threads: int) -> tuple[list[Row], list[str]]:
    """The rows of the benchmarks named, and why some were not run."""
    rows: list[Row] = []
    skipped: list[str] = []
    for name in names:
        try:
            for row in BENCHMARKS[name](threads):
                print(f"{row.work}: {row.seconds:.3g} s, ratio {row.ratio}", file=sys.stderr)
                rows.append(row)
        except SkippedError as reason:
            skipped.append(str(reason))
    return rows, skipped


if __name__ == "__main__":
    sys.exit(main())

"""The filter: `python -m mptcore < spec.json > records.ndjson` runs one experiment.

Exit status 0: complete; 1: after a failure record; 2: a bad spec, one line per problem on stderr;
3: stopped on request, with a checkpoint saved.

With --supervised the first line of stdin is the spec, or an envelope (mptcore.protocol.orders) of
spec, directories and the checkpoint to resume; later lines are acknowledgements and requests, and
the end of the file ends the run. The process may be started long before its spec arrives. Before
that it imports torch, but uses no GPU.

With --checkpoint DIR it saves checkpoints in DIR, and resumes from the latest one found there,
without repeating earlier records. With --work-dir DIR it writes its files to DIR.

With --compile it reads no spec and compiles its kernels, so that no run waits for that.
"""

import argparse
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from mptcore.runtime.process import be_expendable, output_that_waits_for_space

if __name__ == "__main__" and "--supervised" in sys.argv:
    be_expendable()  # before torch is imported, which takes seconds

from mptcore.protocol.exit_codes import COMPLETE, FAILED, INVALID
from mptcore.protocol.orders import Assignment, follow_orders, parse_assignment
from mptcore.protocol.records import Ready, encode
from mptcore.specs import SpecError


def main() -> int:
    """Run the filter and return its exit status."""
    options = _options()
    if options.compile:
        from mptcore.run import compile_kernels

        compile_kernels()
        return COMPLETE
    if options.supervised:
        status = supervised()
        os._exit(status)  # an interpreter that shuts down would wait for the reader of stdin
    assignment = _read(sys.stdin.buffer.read())
    if assignment is None:
        return INVALID
    from mptcore.run import resumable  # a bad spec need not wait for torch
    from mptcore.runtime.runner import SpecRunner

    return SpecRunner(resumable, _with_options(assignment, options), sys.stdout).run()


def supervised() -> int:
    """Run the spec on the first line of stdin under the orders on the later lines, and return the
    exit status. The caller must end the process with os._exit."""
    from mptcore.run import resumable
    from mptcore.runtime.runner import SpecRunner

    sys.stdout = output_that_waits_for_space(1)
    print(encode(None, Ready()), flush=True)  # noqa: T201
    text = sys.stdin.buffer.readline()
    if not text:
        return COMPLETE  # it was never used
    assignment = _read(text)
    if assignment is None:
        return INVALID
    os.environ.update(assignment.environment)
    runner = SpecRunner(resumable, assignment, sys.stdout, supervised=True)
    follow_orders(sys.stdin.buffer, runner.obey)
    status = FAILED
    try:
        status = runner.run()
    except Exception:
        traceback.print_exc()
    sys.stderr.flush()
    return status


def _read(text: bytes) -> Assignment | None:
    """Parse an assignment. Return None for a bad spec and write its problems to stderr."""
    try:
        return parse_assignment(text)
    except SpecError as error:
        for problem in error.problems:
            print(f"{problem.pointer or '/'}: {problem.detail}", file=sys.stderr)  # noqa: T201
        if more := error.count - len(error.problems):
            print(f"and {more} more", file=sys.stderr)  # noqa: T201
        sys.stderr.flush()
        return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mptcore",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--supervised", action="store_true", help="take orders on stdin")
    parser.add_argument("--compile", action="store_true", help="compile the kernels and exit")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="save and resume here")
    parser.add_argument("--work-dir", type=Path, metavar="DIR", help="keep the run's files here")
    return parser.parse_args()


def _with_options(assignment: Assignment, options: argparse.Namespace) -> Assignment:
    given = {"checkpoint_dir": options.checkpoint, "work_dir": options.work_dir}
    return replace(assignment, **{k: v for k, v in given.items() if v is not None})


if __name__ == "__main__":
    sys.exit(main())

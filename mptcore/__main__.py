"""The filter: `python -m mptcore < spec.json > records.ndjson` runs one experiment.

Exit status 0: complete; 1: after a failure record; 2: a bad spec, one line per problem on stderr.
With --supervised the spec is the first line of stdin; later lines are acknowledgements and
requests, and the end of the file ends the run. The process may be started long before its spec
comes: it has torch imported by then, and has touched no GPU.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import threading

from mptcore.records import Failure, Progress, Record, RunError, encode
from mptcore.run import run
from mptcore.specs import ExperimentSpec, SpecError, parse_json, parse_spec


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mptcore", description=__doc__)
    parser.add_argument("--supervised", action="store_true", help="take orders on stdin")
    supervised = parser.parse_args().supervised
    if supervised:
        _die_with_parent()
    text = sys.stdin.buffer.readline() if supervised else sys.stdin.buffer.read()
    if supervised and not text:
        return 0  # a spare that was never used
    try:
        order = parse_json(text) if supervised else None
        if isinstance(order, dict) and "spec" in order:
            text = json.dumps(order["spec"]).encode()
        spec = parse_spec(text)
    except SpecError as error:
        for problem in error.problems:
            print(f"{problem.pointer or '/'}: {problem.detail}", file=sys.stderr)  # noqa: T201
        return 2
    if supervised:
        threading.Thread(target=_follow_orders, daemon=True).start()
        os._exit(_run(spec))  # an interpreter that shuts down would wait for the thread's stdin
    return _run(spec)


def _run(spec: ExperimentSpec) -> int:
    seq = 0
    try:
        for seq, record in enumerate(run(spec), start=1):
            _write(seq, record)
    except RunError as error:
        return _fail(seq + 1, Failure(error.cause, str(error)))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        advice = "lower data.n, per_size or latent_dim"
        return _fail(seq + 1, Failure("oom", f"out of memory: {advice} ({error})"))
    return 0


def _write(seq: int, record: Record) -> None:
    sys.stdout.write(encode(seq, record) + "\n")
    if isinstance(record, Progress) or seq == 1:
        sys.stdout.flush()


def _fail(seq: int, failure: Failure) -> int:
    _write(seq, failure)
    return 1


def _is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, MemoryError)
        or "out of memory" in str(error).lower()
        or (
            "not enough memory" in str(error)  # torch's CPU allocator
        )
    )


def _follow_orders() -> None:
    """Until checkpoints come, the only order that matters is the end of the file."""
    for _ in sys.stdin.buffer:
        pass
    os._exit(1)


def _die_with_parent() -> None:
    """Ask Linux for SIGKILL when the thread that started this process ends."""
    parent = os.getppid()
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if parent == 1 or os.getppid() != parent:
        sys.exit("the supervisor is gone")


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread may still wait for orders, which the interpreter's end cannot bear

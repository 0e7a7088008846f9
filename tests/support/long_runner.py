"""`python -m tests.support.long_runner COUNT` is a runner that writes COUNT points of two series as
fast as it can, and saves a checkpoint after each EVERY points. It stands in for mptcore where a
test needs many records and no science."""

import hashlib
import json
import os
import sys
import threading
from pathlib import Path

from worker.runner import Record

EVERY = 25_000
LATER = 700
"""Points after a snapshot until its checkpoint is written."""


def main(count: int) -> int:
    write({"seq": None, "record": "ready"})
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_supervisor, daemon=True).start()
    resume = order["resume"]
    for seq in range(1 + (resume["after"] if resume else 0), count + 1):
        value = "NaN" if seq % 1000 == 0 else f"{1 / seq!r}"
        sys.stdout.write(
            f'{{"seq": {seq}, "record": "point", "series": "score", "x": {seq}, '
            f'"labels": {{"seed": {seq % 2}}}, "value": {value}, "std_err": {seq / 7!r}, "n": 4}}\n'
        )
        if seq % EVERY == 0:
            write({"seq": None, "record": "snapshot", "after": seq})
        if seq % EVERY == LATER and seq > EVERY:
            save(Path(order["checkpoint_dir"]), seq - LATER)
    write({"seq": None, "record": "end", "count": count})
    return 0


def write(record: Record) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def save(folder: Path, after: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = str(after).encode()
    (folder / str(after)).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    saved = {"file": str(after), "sha256": digest, "after": after}
    write({"seq": None, "record": "checkpoint", **saved})


def end_with_supervisor() -> None:
    for _ in sys.stdin:
        pass
    os._exit(1)


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(status)

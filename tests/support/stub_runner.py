"""A runner that computes nothing: the records of the state machine, with a checkpoint midway.

It stands in for mptcore where a test needs many runs and no science. `--slow` waits between
records; `--die` kills itself midway where it does not resume; `--flood` writes points and
takes memory without end, and obeys no one; `--deaf` reads its order late; `--silent`
writes one point and no more; `--polite` one more some time after SIGTERM, and ends.
"""

import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.support.records import CHECKPOINT_AFTER, RECORDS, point

DEAF_S = 1.5
POLITE_S = 0.5


def main() -> int:
    print(json.dumps({"seq": None, "record": "ready"}), flush=True)
    if "--deaf" in sys.argv:
        time.sleep(DEAF_S)
    line = sys.stdin.readline()
    if not line:
        return 0
    order = json.loads(line)
    if "--flood" in sys.argv:
        _flood()
    if "--silent" in sys.argv:
        print(json.dumps(point(1)), flush=True)
        signal.pause()
    if "--polite" in sys.argv:
        _end_politely()
    stopping = threading.Event()
    threading.Thread(target=_follow, args=[stopping], daemon=True).start()
    after = order["resume"]["after"] if order["resume"] else 0
    for record in RECORDS[after:]:
        print(json.dumps(record), flush=True)
        if record["seq"] == CHECKPOINT_AFTER:
            _save(Path(order["checkpoint_dir"]), record["seq"])
            if "--die" in sys.argv:
                os.kill(os.getpid(), signal.SIGKILL)
        if "--slow" in sys.argv:
            time.sleep(0.3)
        if stopping.is_set():
            _save(Path(order["checkpoint_dir"]), record["seq"])
            return 3
    _end(len(RECORDS))
    return 0


def _flood() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grown = []
    for seq in itertools.count(1):
        print(json.dumps(point(seq)))
        grown.append(bytes(1000))


def _end_politely() -> None:
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    print(json.dumps(point(1)), flush=True)
    asked.wait()
    time.sleep(POLITE_S)
    print(json.dumps(point(2)), flush=True)
    _end(2)
    os._exit(0)


def _end(count: int) -> None:
    print(json.dumps({"seq": None, "record": "end", "count": count}), flush=True)


def _follow(stopping: threading.Event) -> None:
    for line in sys.stdin:
        if "stop" in json.loads(line):
            stopping.set()
    os._exit(1)


def _save(folder: Path, after: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = f"after {after}".encode()
    (folder / str(after)).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    line = {
        "seq": None,
        "record": "checkpoint",
        "file": str(after),
        "sha256": digest,
        "after": after,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)

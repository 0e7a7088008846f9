"""Records between a runner and its supervisor."""

import os
import sys
import threading
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.stub import all_records, started
from worker import spool
from worker.spool import Spool


def write(spooled: Spool, content: bytes) -> None:
    os.write(spooled.fileno(), content)


def lines(spooled: Spool) -> list[bytes]:
    """All lines that it has now."""
    found: list[bytes] = []
    while spooled.has_more:
        spooled.read()
        found += iter(spooled.take, None)
    return found


def test_lines_are_read_in_order_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line may end in a later part, or not yet."""
    monkeypatch.setattr(spool, "READ_BYTES", 5)
    spooled = Spool(tmp_path)
    write(spooled, b"first\nsecond\n\nthi")
    assert lines(spooled) == [b"first", b"second", b""]
    write(spooled, b"rd\n")
    assert lines(spooled) == [b"third"]
    assert not spooled.has_more
    spooled.close()


def test_what_comes_after_the_end_is_ignored(tmp_path: Path) -> None:
    spooled = Spool(tmp_path)
    write(spooled, b"a\nb\n")
    spooled.end()
    write(spooled, b"c\n")
    spooled.end()
    assert lines(spooled) == [b"a", b"b"]
    spooled.close()


def test_a_spool_leaves_no_file(tmp_path: Path) -> None:
    spooled = Spool(tmp_path)
    write(spooled, b"a\n")
    assert [*tmp_path.iterdir()] == []
    spooled.close()


def test_a_runner_does_not_wait_for_its_reader() -> None:
    """It writes more than any pipe holds, and ends before anything is read."""
    line = '{"record": "log", "seq": 1, "text": "%s"}' % ("x" * 1000)
    runner = started(sys.executable, "-c", f"for _ in range(5000): print('''{line}''')")
    wait_until(lambda: not runner.alive)
    assert len(all_records(runner)) == 5000
    runner.kill()


def test_a_reader_beside_a_writer_gets_every_line(tmp_path: Path) -> None:
    spooled = Spool(tmp_path)
    expected = [b"%d" % number for number in range(20_000)]

    def write_all() -> None:
        for line in expected:
            write(spooled, line + b"\n")

    writer = threading.Thread(target=write_all)
    writer.start()
    found: list[bytes] = []
    while writer.is_alive():
        found += lines(spooled)
    writer.join()
    assert found + lines(spooled) == expected
    spooled.close()

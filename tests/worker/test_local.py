"""The local worker ends where it cannot go on, so that it is started again."""

import threading

import pytest

from service.settings import Settings
from worker import slot
from worker.local import LocalWorker


def test_an_error_ends_the_worker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(**_: object) -> None:
        raise OSError("out of processes")

    monkeypatch.setattr(slot, "WarmParent", no_process)
    worker = LocalWorker(settings)
    with pytest.raises(OSError, match="out of processes"):
        worker.run()
    assert worker.stopping.is_set()
    left = [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
    assert left == []

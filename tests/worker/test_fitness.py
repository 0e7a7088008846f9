"""Check that a worker can compute on its GPU."""

import os
from pathlib import Path

import pytest

from worker import fitness
from worker.fitness import hide_gpus, require_gpu


def refusal(monkeypatch: pytest.MonkeyPatch, program: str) -> str:
    monkeypatch.setattr(fitness, "CHECK", program)
    with pytest.raises(SystemExit) as ended:
        require_gpu()
    return str(ended.value)


def test_a_gpu_that_cannot_compute_ends_the_worker_with_the_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = refusal(monkeypatch, "import sys; sys.exit('a trace\\nno kernel image\\n')")
    assert "no GPU (no kernel image)" in told
    assert "CUDA_VISIBLE_DEVICES" in told
    assert "no GPU (status 3)" in refusal(monkeypatch, "import sys; sys.exit(3)")


def test_a_gpu_that_computes_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process like a runner's, which has no secret of the service."""
    file = tmp_path / "seen"
    monkeypatch.setenv("MPT_DATABASE_URL", "secret")
    program = "import os, pathlib; pathlib.Path({!r}).write_text(str({{**os.environ}}))"
    monkeypatch.setattr(fitness, "CHECK", program.format(str(file)))
    require_gpu()
    assert "GOMP_SPINCOUNT" in file.read_text()
    assert "MPT_DATABASE_URL" not in file.read_text()


def test_a_worker_for_the_cpu_shows_its_runners_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    hide_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""

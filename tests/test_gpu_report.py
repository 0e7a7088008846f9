"""`make bench-gpu` runs in full on a pretended GPU, with tiny sizes, so that it works on the first
day on a real one."""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.inputs import TINY
from benchmarks.gpu.lines import Line, lines_of
from mptlab_contract.pretended_gpu import pretended_gpu


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        pytest.param("checks", 20, marks=pytest.mark.slow),
        pytest.param("measures", 3, marks=pytest.mark.slow),
        ("language_models_agree", 1),
    ],
)
def test_the_report_is_complete_on_a_pretended_gpu(
    name: str, holds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in other processes use the CPU there, and what only a GPU has says that it needs one.
    Whole stages compute for ten seconds."""
    monkeypatch.delenv("MPT_MODELS_DIR", raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with pretended_gpu():
        status = main([name, "--output", str(tmp_path)], TINY)
    report = (tmp_path / "gpu.md").read_text()
    assert status == 0, report
    assert report.count("| yes |") >= holds
    assert report.startswith("a pretended GPU, 80.0 GiB")


def test_a_part_that_fails_is_told_and_the_next_one_runs() -> None:
    def broken(_: object) -> list[Line]:
        raise RuntimeError("CUDA error | here")

    def whole(_: object) -> list[Line]:
        return [Line("all", "1", holds=True)]

    failed, well = lines_of([broken, whole], None, 1e9)
    assert (failed.what, failed.holds) == ("broken", False)
    assert failed.measured == "RuntimeError: CUDA error / here"
    assert well.holds
    (late,) = lines_of([whole], None, 0.0)
    assert (late.measured, late.holds) == ("not run: no time left", None)


def test_there_must_be_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit):
        main([])
    assert "there is no GPU here" in capsys.readouterr().err

"""`make demo`, on data so small that it takes no time."""

from pathlib import Path
from typing import Any

import pytest

from mptlab import demo, plots
from mptlab.plots import Plot, draw


@pytest.mark.usefixtures("forked_service")
def test_the_demo_ends_with_a_table_two_figures_and_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published = demo.table1

    def small(per_size: int) -> dict[str, Any]:
        spec = published(per_size)
        return {**spec, "data": {**spec["data"], "n": 20, "dim": 12}}

    titles: list[str] = []

    def noted(series: list[Any], kind: str, title: str) -> Plot:
        titles.append(title)
        return draw(series, kind, title)

    few = {"masks": {"schedule": "all", "per_size": 2}}
    monkeypatch.setattr(demo, "table1", small)
    monkeypatch.setattr(demo, "DIGITS", {**demo.DIGITS, "evaluate": few})
    monkeypatch.setattr(plots, "draw", noted)
    monkeypatch.chdir(tmp_path)
    demo.main()
    progress, told = capsys.readouterr().out.split("nats per observation")
    for name in ("table1 P=1", "table1 P=10", "table1 P=100", "digits K=10"):
        assert f"{name}  succeeded" in progress
        assert f" {name} " in told
    lines = [line.split() for line in told.splitlines()]
    assert ["LML", "paper", "MPT", "score", "paper", "s.e.", "diff."] in lines
    (row,) = (line for line in lines if line[:2] == ["table1", "P=100"])
    assert (row[3], row[7:10]) == ("-60.34", ["-60.34", "±", "0.03"])
    assert "-159.994" in told
    assert "next: `make serve`, then README's first experiment in another terminal\n" in told
    assert titles == ["Table 1 of the paper, P = 100", "Handwritten digits, PPCA with K = 10"]
    for figure in ("table1.png", "digits.png"):
        assert (tmp_path / "demo-output" / figure).read_bytes().startswith(b"\x89PNG")

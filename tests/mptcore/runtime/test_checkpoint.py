"""A run that is stopped and resumed gives the records of an undisturbed one."""

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mptcore import __main__, run
from mptcore.protocol.exit_codes import INVALID, STOPPED
from mptcore.protocol.orders import Assignment
from mptcore.runtime import checkpoint
from mptcore.runtime.checkpoint import files, first_whole
from mptcore.runtime.runner import SpecRunner
from mptlab_contract import records
from mptlab_contract.pretended_gpu import pretended_gpu
from tests.support.runs import spec_of
from tests.support.stub import all_records
from tests.support.warm import warm_parent
from worker.runner import Runner

BASE: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    "data": {"source": "ppca", "n": 30, "dim": 6, "latent_dim": 2, "noise_precision": 5.0},
    "evaluate": {"masks": {"schedule": "all", "per_size": 6}},
    "seeds": [4, 44],
    "compute": {"threads": 1, "memory_mib": 1},
}
TRAIN = {"epochs": 9, "batch_size": 8, "curve_at": [0, 5], "learn_noise_precision": True}
SPECS: dict[str, dict[str, Any]] = {
    "scores": {**BASE, "evaluate": {"masks": {"schedule": "all", "per_size": 1500}}},
    "one size": {
        **BASE,
        "evaluate": {"masks": {"schedule": "fixed", "size": 3, "per_size": 10_000}},
    },
    "target": {**BASE, "evaluate": {"target_std_err": 0.1}},
    "targets": {**BASE, "train": TRAIN, "evaluate": {"target_std_err": 0.1, "max_masks": 5000}},
    "training": {**BASE, "train": TRAIN, "data": {**BASE["data"], "heldout": 0.2}},
    "own data": {**BASE, "train": {"epochs": 5}, "data": {**BASE["data"], "seed": "run"}},
    "sparse": {**BASE, "train": {"epochs": 40, "evaluate_every": 7, "learn_mean": True}},
}


@pytest.mark.parametrize("name", SPECS)
def test_resumed_records_are_those_of_an_undisturbed_run(name: str, tmp_path: Path) -> None:
    spec = spec_of(SPECS[name])
    whole = records(spec, tmp_path / "whole")
    for i, stop_after in enumerate(range(1, len(whole), max(1, len(whole) // 9))):
        folder = tmp_path / str(i)
        first = records(spec, folder, stop_after)
        assert len(first) < len(whole)
        assert first + records(spec, folder) == whole


def test_a_run_resumed_on_a_gpu_gives_each_point_once(tmp_path: Path) -> None:
    """The batches of masks are larger there."""
    spec = spec_of(
        {
            **BASE,
            "data": {**BASE["data"], "dim": 48},
            "evaluate": {"masks": {"schedule": "all", "per_size": 100}},
            "compute": {"threads": 1},
        }
    )
    whole = records(spec, tmp_path / "whole")
    given = records(spec, tmp_path / "both", 20)
    assert 20 <= len(given) < 60
    with pretended_gpu():
        given += records(spec, tmp_path / "both")
    assert places(given) == places(whole)


def places(lines: list[str]) -> list[tuple[Any, ...]]:
    """Return the identity of each record, without measured values."""
    found = map(json.loads, lines)
    return [(one["seq"], one["record"], one.get("x"), one.get("name")) for one in found]


def test_repeated_stops_change_nothing(tmp_path: Path) -> None:
    spec = spec_of(SPECS["training"])
    whole = records(spec, tmp_path / "whole")
    lines: list[str] = []
    while len(lines) < len(whole):
        lines += records(spec, tmp_path, len(lines) + 8)
    assert lines == whole


def test_a_broken_checkpoint_is_replaced_by_the_previous_one(tmp_path: Path) -> None:
    spec = spec_of(SPECS["training"])
    given = records(spec, tmp_path, 10)
    records(spec, tmp_path, 60)
    older, newer = sorted(tmp_path.glob("*.safetensors"))
    content = bytearray(newer.read_bytes())
    content[-3] ^= 1
    newer.write_bytes(content)
    found = first_whole(spec, files(tmp_path))
    assert found is not None
    assert found.after == len(given)
    older.write_bytes(b"")
    assert first_whole(spec, files(tmp_path)) is None


def test_a_checkpoint_of_another_spec_is_not_used(tmp_path: Path) -> None:
    records(spec_of(SPECS["training"]), tmp_path, 10)
    assert first_whole(spec_of(SPECS["scores"]), files(tmp_path)) is None


def test_a_checkpoint_of_an_earlier_version_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors have other names: the run restarts, and its records are the same."""
    spec = spec_of(SPECS["training"])
    with monkeypatch.context() as earlier:
        earlier.setattr(checkpoint, "FORMAT", "1")
        records(spec, tmp_path, 10)
        assert first_whole(spec, files(tmp_path)) is not None
    assert first_whole(spec, files(tmp_path)) is None


def test_a_stopped_run_is_resumed_by_another_process(tmp_path: Path) -> None:
    spec = {**BASE, "train": {"epochs": 2000}, "seeds": [4]}
    envelope = {"spec": spec, "checkpoint_dir": str(tmp_path / "c"), "work_dir": str(tmp_path)}
    runner = Runner(warm_parent().fork)
    runner.start(envelope)
    runner.request_stop()  # now: this test may be too slow to stop it later
    first = all_records(runner)
    assert runner.kill() == STOPPED == 3
    first = [record for record in first if record["record"] != "environment"]
    *first, last, snapshot, saved = first
    assert snapshot == {"seq": None, "record": "snapshot", "after": last["seq"]}
    assert (saved["seq"], saved["record"]) == (None, "checkpoint")
    assert saved["after"] == last["seq"]
    again = Runner(warm_parent().fork)
    resume = {"files": [str(tmp_path / "c" / saved["file"])], "after": saved["after"]}
    again.start({**envelope, "resume": resume})
    *second, end = all_records(again)
    assert again.kill() == 0
    joined = [record for record in [*first, last, *second] if record["seq"] is not None]
    assert [record["seq"] for record in joined] == list(range(1, len(joined) + 1))
    undisturbed = records(spec_of(spec), tmp_path / "undisturbed")
    assert [json.loads(line) for line in undisturbed] == joined
    assert end == {"seq": None, "record": "end", "count": len(joined)}
    artifact = next(record for record in joined if record["record"] == "artifact")
    assert (tmp_path / artifact["file"]).exists()


def test_a_bad_envelope_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps({"spec": BASE, "checkpoint": "x"}).encode() + b"\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # which it replaces
    assert __main__.supervised() == INVALID
    said, told = capfd.readouterr()
    assert json.loads(said)["record"] == "ready"
    assert told.startswith("/checkpoint: ")


def supervised(spec: Any, folder: Path, out: io.StringIO) -> SpecRunner:
    """A runner that saves whenever it may."""
    assignment = Assignment(spec, checkpoint_dir=folder, save_every_s=1e-9)
    return SpecRunner(run.resumable, assignment, out, supervised=True)


def kinds(out: io.StringIO) -> Counter[str]:
    return Counter(json.loads(line)["record"] for line in out.getvalue().splitlines())


def test_a_checkpoint_is_saved_only_after_the_previous_one_is_known(tmp_path: Path) -> None:
    """Otherwise there would be ever more files that the supervisor does not know."""
    out = io.StringIO()
    runner = supervised(spec_of(SPECS["training"]), tmp_path, out)
    assert runner.run() == 0
    assert kinds(out)["checkpoint"] == len(files(tmp_path)) == 1


def test_a_full_disk_for_checkpoints_does_not_end_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = io.StringIO()
    assert supervised(spec_of(SPECS["training"]), tmp_path / "file" / "c", out).run() == 0
    assert kinds(out)["checkpoint"] == 0
    assert "no checkpoint could be saved" in capsys.readouterr().err

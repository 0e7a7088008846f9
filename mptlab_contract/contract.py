"""The contract of every model that can be scored: a family's class gives the fixtures."""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Protocol

import pytest
import torch
from torch import Tensor

from mptcore.estimation.model import Model
from mptcore.protocol.records import Progress, encode
from mptcore.run import resumable
from mptcore.runtime.checkpoint import Snapshot, files, first_whole
from mptcore.runtime.state import RunState
from mptcore.specs import ExperimentSpec
from mptcore.specs.experiment import VectorExperiment
from mptlab_contract.pretended_gpu import pretended_gpu

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
WAYS = ("evaluate", "train", "resume", "baseline", "target")
"""Operations of a run on a GPU."""
SpecPart = dict[str, Any] | None

FEW_MASKS = {"target_std_err": 1e5, "max_masks": 150}
"""No more than the pilot of a run with a target."""


def records(spec: ExperimentSpec, folder: Path, stop_after: int | None = None) -> list[str]:
    """Return the records of a run as lines. It resumes from a folder with a checkpoint. With
    `stop_after` it ends at the first safe point after this number of records, and is saved in the
    folder."""
    state = RunState(work_dir=folder / "work")
    found = first_whole(spec, files(folder))
    given = 0
    if found is not None:
        state.scores, given = found.scores, found.after
    lines = []
    training = found.training if found else None
    for record in resumable(spec, state, training):
        if record is not None and not isinstance(record, Progress):
            state.seq += 1
            if state.seq > given:
                lines.append(encode(state.seq, record))
        if stop_after is not None and state.at_safe_point and state.seq >= max(stop_after, given):
            Snapshot.of(state, spec).save(folder)
            return lines
    return lines


def masks_of(dim: int, size: int) -> Tensor:
    """All masks of a size, (C(D, m), D)."""
    masked = torch.zeros(math.comb(dim, size), dim, dtype=torch.bool)
    for row, subset in zip(masked, itertools.combinations(range(dim), size), strict=True):
        row[list(subset)] = True
    return masked


def every_mask(dim: int) -> Tensor:
    """All masks with a dimension in them, (2^D − 1, D)."""
    return torch.cat([masks_of(dim, size) for size in range(1, dim + 1)])


class Scorable(Protocol):
    """A model that can be scored, of vectors or of others."""

    device: torch.device

    def scores(self, masks: Any, /) -> Tensor: ...


class ModelContract:
    """Contract of any model: its scores do not depend on how they are computed."""

    tolerance: ClassVar[float] = 1e-10
    baseline: ClassVar[SpecPart] = None
    """A model that may be scored beside that of the spec, if there is one."""
    train: ClassVar[SpecPart] = None
    """A few steps of training, if the family trains."""
    ways: ClassVar[Sequence[str]] = WAYS
    """Operations that are tested on a GPU."""

    def model(self, device: torch.device, memory_bytes: int | None = None) -> "Scorable":
        """A model as it is before it scored anything."""
        raise NotImplementedError

    @pytest.fixture
    def masks(self) -> Any:
        """Some masks for it, on the CPU."""
        raise NotImplementedError

    @pytest.fixture
    def spec(self) -> ExperimentSpec:
        """A small experiment of its family, with some batches of masks."""
        raise NotImplementedError

    def scores(self, masks: Any, device: str = "cpu", memory: int | None = None) -> Tensor:
        """Scores of a new model."""
        model = self.model(torch.device(device), memory)
        with torch.no_grad():
            return model.scores(_placed(masks, model)).cpu()

    def assert_same(self, found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=0, atol=self.tolerance)

    def test_a_score_for_each_mask_in_float64(self, masks: Any) -> None:
        scores = self.scores(masks)
        assert scores.shape == (len(masks),)
        assert scores.dtype == torch.float64
        assert scores.isfinite().all()
        assert scores.std() > 0.01  # they differ between masks

    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_batches_of_any_size_give_the_same_scores(self, masks: Any, size: int) -> None:
        model = self.model(torch.device("cpu"))
        with torch.no_grad():
            parts = [
                _scores_of(model, masks[chosen], int(chosen[0]))
                for chosen in torch.split(torch.arange(len(masks)), size)
            ]
        self.assert_same(torch.cat(parts), self.scores(masks))

    def test_threads_do_not_matter(self, masks: Any) -> None:
        before = torch.get_num_threads()
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(self.scores(masks))
        torch.set_num_threads(before)
        self.assert_same(found[0], found[1])

    def test_memory_does_not_matter(self, masks: Any) -> None:
        self.assert_same(self.scores(masks, memory=1), self.scores(masks, memory=2**30))

    @pytest.mark.parametrize("device", DEVICES)
    def test_the_device_does_not_matter(self, masks: Any, device: str) -> None:
        assert self.model(torch.device(device)).device.type == device
        self.assert_same(self.scores(masks, device), self.scores(masks))

    def test_the_spec_is_imported_without_torch(self, spec: ExperimentSpec) -> None:
        """The service imports it, and never imports torch."""
        code = f"import {type(spec).__module__}, sys; print('torch' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "False\n"

    def test_a_resumed_run_equals_an_uninterrupted_one(
        self, spec: ExperimentSpec, tmp_path: Path
    ) -> None:
        whole = records(spec, tmp_path / "whole")
        for stop_after in {2, len(whole) // 2}:
            folder = tmp_path / str(stop_after)
            first = records(spec, folder, stop_after)
            assert 0 < len(first) < len(whole)
            assert first + records(spec, folder) == whole

    def test_heldout_observations_are_scored(self, spec: ExperimentSpec, tmp_path: Path) -> None:
        if not isinstance(spec, VectorExperiment):
            return
        value = spec.model_dump(mode="json", exclude_unset=True)
        value["data"]["heldout"] = 0.4
        value["evaluate"]["masks"] = {"schedule": "fixed", "size": 1, "per_size": 1}
        heldout = type(spec).model_validate_json(json.dumps(value))
        lines = map(json.loads, records(heldout, tmp_path))
        metrics = {line["name"] for line in lines if line["record"] == "metric"}
        assert {"lml_heldout", "biased_score_heldout"} <= metrics

    @pytest.mark.parametrize("way", WAYS)
    def test_a_gpu_gives_the_same_records(
        self, way: str, spec: ExperimentSpec, tmp_path: Path
    ) -> None:
        """On a device that refuses to mix its tensors, and generators, with those of the CPU."""
        on_cpu, on_gpu = (self._in_way(way, spec, device) for device in ("cpu", "cuda"))
        if on_cpu is None or on_gpu is None:
            return
        with pretended_gpu() as gpu:
            found = records(on_gpu, tmp_path / "gpu")
            assert gpu.launches > 0
            if way == "resume":
                folder = tmp_path / "stopped"
                first = records(on_gpu, folder, len(found) // 2)
                assert 0 < len(first) < len(found)
                assert first + records(on_gpu, folder) == found
                return
        assert_alike(found, records(on_cpu, tmp_path / "cpu"))

    def _in_way(self, way: str, spec: ExperimentSpec, device: str) -> ExperimentSpec | None:
        """A spec, made to do one of WAYS with few masks on a device; None where it does not."""
        if way not in self.ways:
            return None
        value = spec.model_dump(mode="json", exclude_unset=True)
        value["compute"]["device"] = device
        value["evaluate"]["masks"]["per_size"] = 1
        if way == "target":
            value["evaluate"] |= FEW_MASKS
        if way == "baseline":
            if self.baseline is None:
                return None
            value["baseline"] = self.baseline
        if way in ("train", "resume"):
            if self.train is None and way == "train":
                return None
            if self.train is not None:
                value["train"] = self.train
        return type(spec).model_validate_json(json.dumps(value))


def assert_alike(found: list[str], expected: list[str]) -> None:
    """The same records, but for the machine, the last digits, and digests of files with these."""
    for line, other in zip(map(json.loads, found[1:]), map(json.loads, expected[1:]), strict=True):
        for name in ("value", "std_err"):
            number = other.pop(name, None)
            close = None if number is None else pytest.approx(number, rel=1e-4, abs=1e-4)
            assert line.pop(name, None) == close, (name, line)
        assert line | {"sha256": None} == other | {"sha256": None}


class TractableContract(ModelContract):
    """For a model with a joint density over a few dimensions: its scores are those of it."""

    def log_prob(self, observed: Tensor) -> float:
        """The mean over observations of log p(x_R) for one set R (D,) of dimensions, computed here
        by other means than in the model: a sum over all states, a dense Gaussian, a published
        formula."""
        raise NotImplementedError

    def tractable(self) -> Model:
        model = self.model(torch.device("cpu"))
        assert isinstance(model, Model)
        assert model.is_tractable
        return model

    @pytest.fixture
    def masks(self) -> Tensor:
        return every_mask(self.tractable().dim)[::3]

    def test_enumerated_scores_sum_to_the_joint(self) -> None:
        """The mean score over all masks of a size, summed over sizes, is log p(x)."""
        model = self.tractable()
        sizes = range(1, model.dim + 1)
        with torch.no_grad():
            curve = [model.scores(masks_of(model.dim, size)).mean().item() for size in sizes]
        assert math.fsum(curve) == pytest.approx(model.evidence().value, abs=1e-8)
        assert model.evidence().std_err == 0

    def test_scores_follow_from_an_independent_density(self) -> None:
        """If scores, evidence and joint scores come from one wrong density, they still agree with
        each other."""
        model = self.tractable()
        singles = torch.eye(model.dim, dtype=torch.bool)

        @cache
        def log_prob(*observed: bool) -> float:
            return self.log_prob(torch.tensor(observed)) if any(observed) else 0.0

        masks, scores, joint_scores = every_mask(model.dim), [], []
        for mask in masks:
            rest = log_prob(*(~mask).tolist())
            with_one = [log_prob(*(~mask | single).tolist()) for single in singles[mask]]
            scores.append(fmean(with_one) - rest)
            joint_scores.append(log_prob(*[True] * model.dim) - rest)
        with torch.no_grad():
            found = model.scores(masks), model.joint_scores(masks)
        expected = torch.tensor([scores, joint_scores], dtype=torch.float64)
        torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=1e-8)


def _scores_of(model: Scorable, masks: Any, first: int) -> Tensor:
    """Return the scores of masks that `first` others precede."""
    if isinstance(model, Model) and model.is_sampled:
        return model.sampled_scores(masks, first)[0]
    return model.scores(masks)


def _placed(masks: Any, model: Scorable) -> Any:
    return masks.to(model.device) if isinstance(masks, Tensor) else masks

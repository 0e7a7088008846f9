"""Runs of every family that several processes compute have the records of one process, bit for
bit."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mptcore.estimation.evaluate import Evaluation
from mptcore.families.masked_lm import (
    evaluation,
    model,
    sequences,
    text_cumulative,
    text_scores,
)
from mptcore.runtime.checkpoint import Resumed, Snapshot, files, first_whole
from mptcore.runtime.session import Session
from mptcore.specs import ExperimentSpec, parse_spec
from tests.mptcore.test_goldens import IWAE, ONE_THREAD, PPCA, SIMULATED, SIZES, SPECS, VAE, ppca
from tests.support import tiny_lm
from tests.support.divided import Board, alone, divided, steps

TOKENS, BYTES = 40, 3000
"""Tokens of a batch, and bytes of its part: small, so that short runs have many."""
DIVIDED: dict[str, dict[str, Any]] = {
    name: SPECS[name]
    for name in (
        "table1", "fig1-right", "fig2-center", "fig3-linear", "fig3-vae", "fig5-left",
        "fig5-right", "bias", "nested", "exhaustive", "target", "target not reached", "grid",
        "linear vae, sampled", "language", "language, several masks", "orders",
        "language target", "language training",
    )
} | {
    "balanced": ppca(
        2,
        data={**SIMULATED, "heldout": 0.2},
        baseline={**PPCA, "init": "random"},
        evaluate={"masks": {"schedule": "all", "per_size": 4, "design": "balanced"}},
    ),
    "vae, target": {
        "model": VAE,
        "data": {**SIMULATED, "n": 10, "dim": 64},
        "evaluate": {"masks": SIZES, "lml": IWAE, "target_std_err": 0.5, "max_masks": 200},
    },
    "texts": {
        "model": {"family": "masked_lm", "checkpoint": "tiny"},
        "data": {"source": "text", "lines": ["red cat", "the cat sat on the old red mat"]},
        "evaluate": {
            "texts": {
                "scores": ["cumulative", "pll_word_l2r", "unmasked"],
                "target_std_err": 5.0,
                "max_masks": 128,
            }
        },
    },
}  # fmt: skip

SLOW = ("grid", "fig3-linear", "fig3-vae")
"""Runs that train for a second or more, and do so in every process."""


def masks_together(evaluation: Evaluation) -> int:
    return 1 if evaluation.spec.target_std_err is None else 7


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_lm.checkpoint(tmp_path / "models" / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setattr(Evaluation, "batch", property(masks_together))
    for module in (evaluation, sequences, text_cumulative, text_scores):
        monkeypatch.setattr(module, "CHUNK_TOKENS", TOKENS)
    monkeypatch.setitem(model.CPU_BYTES, "scores", BYTES)


def spec_named(name: str) -> ExperimentSpec:
    return parse_spec(json.dumps({**DIVIDED[name], "compute": ONE_THREAD}).encode())


@pytest.mark.parametrize("name", DIVIDED)
def test_helpers_do_not_change_a_record(name: str, tmp_path: Path) -> None:
    """Without helpers, with one and with three, of which each may vanish at any step; with two if
    each takes seconds. Their scores are used: at most once each, since nobody else consumes
    them."""
    spec = spec_named(name)
    expected = alone(spec, tmp_path)
    assert len(expected) > 3
    helped = 0
    for helpers in (2,) if name in SLOW else (0, 1, 3):
        board = Board(random.Random(f"{name} {helpers}"))
        assert divided(spec, tmp_path, board, helpers) == expected
        assert set(board.used.values()) <= {0, 1}
        helped += sum(board.used.values())
    assert helped > 0


def interrupted(spec: ExperimentSpec, folder: Path, after: int) -> Resumed | None:
    """Save a divided run at its first safe point after some records, and load it again."""
    session = Session(work_dir=folder / "work")
    for _ in steps(spec, session):
        if session.at_safe_point and session.seq >= after:
            Snapshot.of(session, spec).save(folder)
            break
    return first_whole(spec, files(folder))


@pytest.mark.parametrize("name", ["table1", "target", "fig3-vae", "vae, target", "language"])
def test_a_coordinator_resumes_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    """Helpers begin at the same checkpoint, with other spans than the first time."""
    spec = spec_named(name)
    expected = alone(spec, tmp_path)
    found = interrupted(spec, tmp_path, len(expected) // 2)
    assert found is not None
    board = Board(random.Random(name), next=len(found.scores.values))
    assert divided(spec, tmp_path, board, 2, found) == expected[found.after :]

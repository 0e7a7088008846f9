"""Errors of short texts, of which most masks at high rates hide all tokens."""

from pathlib import Path

import pytest

from mptcore.protocol.records import Record
from mptcore.run import resumable
from mptcore.runtime.state import RunState
from tests.support import tiny_lm
from tests.support.lm_specs import with_data
from tests.support.runs import metric, points, spec_of

RATES = [0.5, 0.99]
SEEDS = [*range(8)]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))


def scored(size: int) -> list[Record]:
    """Two masks of each of 14 texts, which have `size` tokens, for several seeds."""
    words = tiny_lm.WORDS * 2
    lines = [" ".join(words[i % 9 : i % 9 + size]) for i in range(14)]
    masks = {"schedule": "rates", "rates": RATES, "per_size": 2}
    spec = with_data(lines=lines) | {"evaluate": {"masks": masks}, "seeds": SEEDS}
    return [one for one in resumable(spec_of(spec), RunState()) if one is not None]


def test_masks_that_are_equal_by_chance_have_no_error_of_0() -> None:
    """At 0.99, one mask in 25 leaves one of five tokens visible. A third of the runs have no such
    mask. At 0.5, every mask leaves tokens visible."""
    found = scored(5)
    for point in points(found, "score_by_rate"):
        assert (point.std_err is None) == (point.x == 0.99), point
    for seed in SEEDS:
        assert metric(found, "area", seed=seed).std_err


def test_texts_of_one_token_are_exact() -> None:
    found = scored(1)
    assert {one.std_err for one in points(found, "score_by_rate")} == {0}
    assert {metric(found, "area", seed=seed).std_err for seed in SEEDS} == {0}

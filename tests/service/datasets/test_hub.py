"""The hub's cache is limited in size; the least recently read files are deleted first."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from service.datasets.hub import UNUSED_S, trim_hub_cache
from service.settings import Settings
from tests.support.hub import cached


@pytest.fixture
def cache(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(settings.store / "hub" / "hub"))
    return settings.store / "hub" / "hub"


def test_least_recently_read_files_are_deleted_first(settings: Settings, cache: Path) -> None:
    oldest = cached(cache, "a", 1000, 3 * UNUSED_S)
    old = cached(cache, "b", 1000, 2 * UNUSED_S)
    new = cached(cache, "c", 1000, 60)
    trim_hub_cache(settings.model_copy(update={"hub_cache_bytes": 3000}))
    assert oldest.exists()
    trim_hub_cache(settings.model_copy(update={"hub_cache_bytes": 2000}))
    assert (oldest.exists(), old.exists(), new.exists()) == (False, True, True)
    trim_hub_cache(settings.model_copy(update={"hub_cache_bytes": 0}))
    assert (old.exists(), new.exists()) == (False, True)


def test_a_cache_outside_the_store_is_not_trimmed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "mine"))
    mine = cached(tmp_path / "mine", "a", 1000, 3 * UNUSED_S)
    trim_hub_cache(settings.model_copy(update={"hub_cache_bytes": 0}))
    assert mine.exists()

"""The hub of models: whether this machine reaches it, and the limit of its cache in the store."""

import logging
import os
import time
from concurrent.futures import Future
from pathlib import Path
from threading import Condition, Thread

import httpx
from cachetools import TTLCache, cached

from service.settings import Settings

log = logging.getLogger(__name__)

HUB = "https://huggingface.co"
ANSWER_S = 3.0
"""Maximum time to wait for the hub, also for the resolution of its name."""
KNOWN_FOR_S = 15.0
UNUSED_S = 48 * 3600.0
"""Minimum age of the last read, because a file system may update access times only once a day."""


def hub_url() -> str:
    """Return the URL of the hub, which may be a mirror."""
    return os.environ.get("HF_ENDPOINT") or HUB


@cached(TTLCache(1, KNOWN_FOR_S), condition=Condition())
def hub_answers(url: str) -> bool:
    """Return whether the hub gives any answer in time. Concurrent calls wait for one request."""
    answered: Future[bool] = Future()
    Thread(target=lambda: answered.set_result(_answers(url)), daemon=True).start()
    try:
        return answered.result(ANSWER_S)
    except TimeoutError:
        return False


def _answers(url: str) -> bool:
    try:
        httpx.head(url, timeout=ANSWER_S)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True


def trim_hub_cache(settings: Settings) -> None:
    """Delete the files that were not read for the longest time until the cache is within its limit.
    They can be downloaded again. A cache outside the store is not touched."""
    from huggingface_hub import constants, scan_cache_dir

    cache = Path(constants.HF_HUB_CACHE)
    if not cache.is_dir() or not cache.resolve().is_relative_to(settings.store.resolve()):
        return
    found = scan_cache_dir(cache)
    excess = found.size_on_disk - settings.hub_cache_bytes
    for repo in sorted(found.repos, key=lambda repo: repo.last_accessed):
        if excess <= 0 or time.time() - repo.last_accessed < UNUSED_S:
            return
        log.info("removing %s from the hub's cache", repo.repo_id)
        hashes = [revision.commit_hash for revision in repo.revisions]
        found.delete_revisions(*hashes).execute()
        excess -= repo.size_on_disk

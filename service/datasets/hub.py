"""Limit the size of the hub's cache, if it lies in the store."""

import logging
import time
from pathlib import Path

from service.settings import Settings

log = logging.getLogger(__name__)

UNUSED_S = 48 * 3600.0
"""Minimum age of the last read, because a file system may update access times only once a day."""


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

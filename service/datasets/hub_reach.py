"""Find out whether this machine reaches the hub of models."""

import os
from concurrent.futures import Future
from threading import Condition, Thread

import httpx
from cachetools import TTLCache, cached

HUB = "https://huggingface.co"
ANSWER_S = 3.0
"""Maximum time to wait for the hub, also for the resolution of its name."""
KNOWN_FOR_S = 15.0


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

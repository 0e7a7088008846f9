"""A real browser, and the service for it in this process."""

import asyncio
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from mptlab import Client, serve
from service.app import create_app
from service.db.engine import Database
from service.experiments.models import Experiment
from service.settings import Settings
from service.web.server import Server

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, PROGRAMS)), None)
"""The shell draws the same pages without a window, for three quarters of the CPU time."""
ALONE = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""It sends requests only to the service."""
START_TIMEOUT_S = 30.0
SHOWN_MS = 30_000.0
"""Maximum time for expected content to appear on a busy machine."""


@contextmanager
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    expect.set_options(timeout=SHOWN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ALONE)
        yield browser
        browser.close()


class Service:
    """The API on a port of its own, which can be stopped and started again."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.port = serve.free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        config = uvicorn.Config(create_app(self.settings), port=self.port, log_config=None)
        self._server = Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()))
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if time.monotonic() > deadline:
                raise TimeoutError("the service does not start")
            time.sleep(0.02)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


def signed_in(page: Page, service: Service, key: str | None = None) -> None:
    """Sign the browser in with a key, by default the first admin's, as a person would."""
    page.goto(f"{service.url}/sign-in")
    page.fill("#key", key or service.settings.key_file.read_text().strip())
    page.click("text=Sign in >> nth=-1")
    page.wait_for_url(f"{service.url}/")


@dataclass(frozen=True)
class BrowsedLab:
    """A service, and the ids of its objects, from `filled_lab.fill`."""

    service: Service
    database: Database
    api: Client
    ids: dict[str, str]

    def url(self, path: str) -> str:
        return f"{self.service.url}{path}"

    def status(self, experiment_id: str) -> str:
        with self.database.snapshot() as session:
            return session.get_one(Experiment, experiment_id).status


def watched(context: BrowserContext, lab: BrowsedLab) -> Iterator[Page]:
    """A page that asks no other host, breaks nowhere and tries no rule of its policy."""
    page = context.new_page()
    asked: list[str] = []
    broken: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on("dialog", lambda dialog: broken.append(dialog.message))
    page.on(
        "console",
        lambda said: broken.append(said.text) if "Content Security" in said.text else None,
    )
    yield page
    page.close()
    assert [url for url in asked if not url.startswith((lab.service.url, "data:", "blob:"))] == []
    assert broken == []


def containing(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))

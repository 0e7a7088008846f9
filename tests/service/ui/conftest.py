"""A browser, a service and a made-up lab for the tests of a file. After each test: nothing was
asked of another host, the page broke nowhere, and no rule of its policy was tried."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from mptlab import Client
from service.db.engine import Database
from service.settings import Settings
from tests.support.browser import BrowsedLab, Service, chromium, signed_in, watched
from tests.support.filled_lab import fill


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def lab(prepared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowsedLab]:
    store = shutil.copytree(prepared_store, tmp_path_factory.mktemp("pages") / "store")
    settings = Settings(store=store, database_url=None, data_dir=None, models_dir=None)
    service = Service(settings)
    service.start()
    key = settings.key_file.read_text().strip()
    with closing(Database(settings.url)) as database, Client(service.url, key) as api:
        yield BrowsedLab(service, database, api, fill(database, api, settings))
    service.stop()


@pytest.fixture(scope="module")
def cookies(browser: Browser, lab: BrowsedLab) -> Iterator[BrowserContext]:
    """A browser that is signed in as the first admin."""
    context = browser.new_context()
    signed_in(context.new_page(), lab.service)
    yield context
    context.close()


@pytest.fixture
def page(cookies: BrowserContext, lab: BrowsedLab) -> Iterator[Page]:
    """Page of the first admin."""
    yield from watched(cookies, lab)


@pytest.fixture
def stranger(browser: Browser, lab: BrowsedLab) -> Iterator[Page]:
    """Page of a browser that is not signed in."""
    context = browser.new_context()
    yield from watched(context, lab)
    context.close()

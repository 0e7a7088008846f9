"""A real provider of accounts, and a browser at a service that knows it."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.support.oidc_provider import RealProvider, with_provider


@pytest.fixture(scope="module")
def running() -> Iterator[RealProvider]:
    provider = RealProvider()
    provider.start()
    yield provider
    provider.stop()


@pytest.fixture
def provider(running: RealProvider) -> Iterator[RealProvider]:
    running.add("ann", groups=["staff"])
    yield running
    running.forge()


@pytest.fixture
def oidc(place: Settings, provider: RealProvider) -> Settings:
    """Settings of a service that admits every account, on either database."""
    return with_provider(place, provider)


@pytest.fixture
def browser(oidc: Settings) -> Iterator[TestClient]:
    """A browser that is not signed in."""
    with TestClient(create_app(oidc), raise_server_exceptions=False) as client:
        yield client

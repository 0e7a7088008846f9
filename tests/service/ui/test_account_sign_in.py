"""Signing in by an account of a real provider, and making a key, as a person does in a browser."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from service.settings import Settings
from tests.support.browser import Service
from tests.support.callers import bearer
from tests.support.oidc_provider import RealProvider, with_provider


@pytest.fixture(scope="module")
def provider() -> Iterator[RealProvider]:
    made = RealProvider()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def service(
    prepared_store: Path, tmp_path_factory: pytest.TempPathFactory, provider: RealProvider
) -> Iterator[Service]:
    store = shutil.copytree(prepared_store, tmp_path_factory.mktemp("accounts") / "store")
    service = Service(with_provider(Settings(store=store, database_url=None), provider))
    provider.start(f"{service.url}/sign-in")
    provider.add("ann")
    service.start()
    yield service
    service.stop()


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def at_provider(page: Page, login: str) -> None:
    """Give the password, and consent if the provider asks for it."""
    page.fill("input[name=login]", login)
    page.fill("input[name=password]", "of a test")
    page.click("button[type=submit]")
    page.wait_for_load_state()
    if "/interaction/" in page.url:
        page.click("button[type=submit]")


def test_a_member_makes_a_key_an_hour_after_the_sign_in(
    page: Page, service: Service, provider: RealProvider
) -> None:
    provider.forge(auth_time=time.time() - 3600)
    page.goto(f"{service.url}/lab")
    page.get_by_role("button", name="Sign in with your account").click()
    at_provider(page, "ann")
    page.wait_for_url(f"{service.url}/lab")
    expect(page.get_by_role("link", name="ann", exact=True)).to_be_visible()
    provider.forge()
    page.fill("#key-name", "laptop")
    page.get_by_role("button", name="Make a key").click()
    at_provider(page, "ann")  # the key is made after the return
    key = page.get_by_role("status").locator("code.wrap").last.inner_text()
    expect(page).to_have_url(f"{service.url}/lab")
    me = httpx.get(f"{service.url}/v1/me", headers=bearer(key), trust_env=False)
    assert me.json()["name"] == "ann"
    page.get_by_role("button", name="Make a key").click()
    expect(page.get_by_role("status").locator("code.wrap").last).not_to_have_text(key)
    expect(page.locator("#key-days")).to_have_value("30")  # for one more key
    page.get_by_role("button", name="Sign out").click()
    signed_out = page.get_by_text("You are signed out here")
    expect(signed_out).to_contain_text("You are still signed in at 127.0.0.1")
    page.fill("#key", key)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_role("button", name="Sign out").click()
    expect(signed_out).to_be_visible()
    expect(signed_out).not_to_contain_text("still signed in")


def test_a_refusal_is_shown_and_the_address_is_cleaned(page: Page, service: Service) -> None:
    page.goto(f"{service.url}/sign-in?state=foreign&code=foreign")
    expect(page.get_by_role("alert")).to_contain_text("not begun in this browser")
    expect(page).to_have_url(f"{service.url}/sign-in")


@pytest.mark.parametrize("target", ["//elsewhere.example", "/%09/elsewhere.example", "/%5Ca"])
def test_no_sign_in_by_an_account_leads_to_another_host(
    page: Page, service: Service, target: str
) -> None:
    page.goto(f"{service.url}/sign-in?next={target}")
    page.get_by_role("button", name="Sign in with your account").click()
    at_provider(page, "ann")
    page.wait_for_url(f"{service.url}/")


def test_the_page_says_that_the_provider_is_away(
    page: Page, service: Service, provider: RealProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.accounts.oidc.METADATA_S", 0.0)
    provider.stop()
    page.goto(f"{service.url}/sign-in")
    page.get_by_role("button", name="Sign in with your account").click()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    provider.start(f"{service.url}/sign-in")

"""The list of experiments: lines of sweeps, results, long failures, search."""

import pytest
from playwright.sync_api import Page, expect

from service.queue.lease import FailureCause
from service.vocabulary import Status
from tests.support.attempts import claim_next, submitted
from tests.support.browser import BrowsedLab
from tests.support.filled_lab import end

pytestmark = pytest.mark.slow
"""A browser and a lab of its own; the service has quick tests of its lists."""


def test_a_sweep_is_a_line_that_opens_to_its_points(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/?q=by+n"))
    rows = page.get_by_role("region", name="Experiments").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("3 points · observations N")
    opener = page.get_by_role("button", name="noise by hand")
    opener.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    expect(rows.nth(0).get_by_role("link")).to_have_text(["noise by hand"])
    expect(page.locator(".point a.name")).to_have_text([f"n {n}" for n in (50, 100, 200)])
    expect(rows.nth(1).locator(".result-cell")).to_have_text("LML −61MPT −61.020 ± 0.090")
    page.get_by_label("Select the points of noise by hand").check()
    expect(page.get_by_text("3 selected")).to_be_visible()
    page.get_by_label("Tag", exact=True).fill("of the line")
    page.get_by_role("button", name="Add tag").click()
    expect(rows.locator(".tag", has_text="of the line")).to_have_count(3)
    opener.press("Enter")
    expect(rows).to_have_count(1)
    page.goto(lab.url("/?filter=spec.data.n+%3E+60"))
    page.get_by_role("button", name="noise by hand").click()
    expect(rows.locator("a.name", has_text="n 50")).to_have_count(0)  # it does not match
    page.goto(lab.url("/?order_by=metrics.lml+desc"))
    expect(page.get_by_role("button", name="noise by hand")).to_have_count(0)  # each has its place


def test_a_search_begins_while_one_types(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/"))
    rows = page.get_by_role("region", name="Experiments").locator("tbody tr")
    expect(rows.nth(3)).to_be_visible()
    search = page.get_by_label("Search")
    search.press_sequentially("digits k=2")
    expect(rows).to_have_count(1)
    page.wait_for_url("**/?q=digits+k%3D2")
    expect(search).to_be_focused()


def test_a_long_failure_is_whole_on_hover_and_in_its_row(page: Page, lab: BrowsedLab) -> None:
    message = f"the loss is not finite in the column {'weight_' * 30}: standardize the data"
    submitted(lab.database, name="a long failure", priority=100)
    end(lab.database, claim_next(lab.database), Status.FAILED, FailureCause("invalid", message))
    page.goto(lab.url("/?q=long+failure"))
    shown = page.get_by_role("button", name="the loss is not finite")
    expect(shown).to_have_attribute("title", message)
    expect(shown).not_to_have_text(message)
    width = "one => one.offsetWidth"
    assert shown.evaluate(width) < 340
    shown.click()
    expect(shown).to_have_text(message)
    assert shown.evaluate(width) < 340

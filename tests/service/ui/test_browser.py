"""The pages as a person uses them, in a real browser before a real service."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from service.accounts import accounts
from service.experiments.filters.fields import FAMILIES
from service.queue import lease
from service.vocabulary import Role, Status
from tests.service.ui.screenshots import DESK, PHONE, pages
from tests.support.attempts import claim_next, submitted
from tests.support.browser import BrowsedLab, containing, signed_in
from tests.support.filled_lab import MARKUP, end, key_of, points, succeeded
from tests.support.stored import change

AXE = (Path(__file__).parents[2] / "support" / "axe" / "axe.min.js").read_text()
"""axe-core 4.14.1 from npm: MPL-2.0, beside it."""


def test_a_link_signs_in_once_and_opens_the_requested_page(stranger: Page, lab: BrowsedLab) -> None:
    stranger.goto(lab.url("/lab"))
    stranger.wait_for_url("**/sign-in?next=%2Flab")
    path = lab.api.sign_in_url()
    stranger.goto(path.replace("/sign-in", "/sign-in?next=%2Flab"))
    expect(stranger.get_by_role("heading", name="Sign in as local?")).to_be_visible()
    assert stranger.context.cookies() == []
    stranger.get_by_role("button", name="Sign in as local").click()
    stranger.wait_for_url(lab.url("/lab"))
    expect(stranger.get_by_role("heading", name="My keys")).to_be_visible()
    assert stranger.evaluate("document.cookie") == ""
    again = lab.api.sign_in_url().replace("/sign-in", "/sign-in?next=%2Fsweeps")
    stranger.goto(again)  # of the user who is signed in: nothing to ask
    stranger.wait_for_url(lab.url("/sweeps"))
    stranger.goto(lab.url("/lab"))
    stranger.get_by_role("button", name="Sign out").click()
    at_sign_in = re.compile(r"/sign-in(\?|$)")  # with `next` where a poll saw it first
    expect(stranger).to_have_url(at_sign_in)
    stranger.goto(path)
    stranger.get_by_role("button", name="Sign in as local").click()
    expect(stranger.get_by_role("alert")).to_contain_text("used before")


def test_a_foreign_link_replaces_no_sign_in_unasked(stranger: Page, lab: BrowsedLab) -> None:
    """Signed in as another user, the page names both; "No" leaves everything as it is, and so does
    an Enter that was meant for something else."""
    signed_in(stranger, lab.service, key_of(lab.database, "ann", Role.MEMBER))
    before = stranger.context.cookies()
    stranger.goto(lab.api.sign_in_url())
    asked = stranger.get_by_text("The link you opened signs this browser in as")
    expect(asked).to_contain_text("as local. You are signed in as ann: that ends.")
    expect(stranger.get_by_role("button", name="No")).to_be_focused()
    stranger.keyboard.press("Enter")
    stranger.wait_for_url(lab.url("/"))
    expect(stranger.get_by_role("link", name="ann", exact=True)).to_be_visible()
    assert [one["value"] for one in stranger.context.cookies()] == [one["value"] for one in before]


@pytest.mark.parametrize("target", ["//elsewhere.example", "/%09/elsewhere.example", "/%5Ca"])
def test_no_sign_in_leads_to_another_host(stranger: Page, lab: BrowsedLab, target: str) -> None:
    stranger.goto(lab.url(f"/sign-in?next={target}"))
    stranger.fill("#key", lab.service.settings.key_file.read_text().strip())
    stranger.get_by_role("button", name="Sign in").click()
    stranger.wait_for_url(lab.url("/"))


def test_a_preset_is_submitted_and_its_curve_grows(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/new?tab=spec"))
    page.select_option("#preset", "fig1-left 0")
    page.fill("#name", "to be watched")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/experiments/*")
    expect(page.get_by_role("heading", name="to be watched")).to_be_visible()
    expect(page.locator(".first .status")).to_have_text("queued")
    lab.api.change(page.url.split("/")[-1], priority=100)
    page.evaluate("window.same = true")
    claim = claim_next(lab.database)
    assert page.url.endswith(claim.experiment_id)
    seq = points(lab.database, claim, range(1, 6))
    chart = page.get_by_role("img")
    expect(chart).to_have_attribute("aria-label", containing("seed 4: 5 points"))
    expect(page.locator(".first .status")).to_have_text("running")
    points(lab.database, claim, range(6, 21), first=seq)
    expect(chart).to_have_attribute("aria-label", containing("seed 4: 19 points"))
    end(lab.database, claim, Status.SUCCEEDED)
    expect(page.locator(".first .status")).to_have_text("succeeded")
    assert page.evaluate("window.same")
    page.get_by_role("tab", name="What happened").click()
    history = page.get_by_role("list", name="What happened").get_by_role("listitem")
    expect(history).to_contain_text(["queued", "running", "succeeded"])


def test_points_that_come_once_more_are_shown_once(page: Page, lab: BrowsedLab) -> None:
    """The run was handed back without a checkpoint and restarts."""
    submitted(lab.database, name="begins again", priority=100)
    claim = claim_next(lab.database)
    points(lab.database, claim, range(1, 21))
    page.goto(lab.url(f"/experiments/{claim.experiment_id}"))
    chart = page.get_by_role("img")
    expect(chart).to_have_attribute("aria-label", containing("seed 4: 19 points"))
    with lab.database.transaction() as session:
        lease.release(session, claim)
    again = claim_next(lab.database)
    assert again.experiment_id == claim.experiment_id
    with page.expect_response(containing(f"{claim.experiment_id}/curves")):
        expect(page.get_by_text("Attempts")).to_be_visible()
    seq = points(lab.database, again, range(1, 21))
    points(lab.database, again, range(21, 31), first=seq)
    expect(chart).to_have_attribute("aria-label", containing("seed 4: 29 points"))
    end(lab.database, again, Status.SUCCEEDED)


def test_a_missing_value_is_a_gap(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url(f"/experiments/{lab.ids['succeeded 2']}"))
    chart = page.get_by_role("img")
    expect(chart).to_have_attribute("aria-label", containing("seed 44: 63 points, from −0.8"))
    legend = page.locator(".u-legend .u-series:not(:first-child):visible")
    expect(legend.first).to_be_visible()
    before = [one.bounding_box() for one in legend.all()]
    page.locator(".u-over").hover()
    expect(page.locator(".u-legend")).to_contain_text("±")
    assert [one.bounding_box() for one in legend.all()] == before  # nothing moves
    page.get_by_label("log x").check()
    expect(page.locator("canvas")).to_be_visible()
    expect(page.get_by_label("log y")).to_have_count(0)  # scores are negative


def test_two_experiments_are_compared_by_their_different_fields(
    page: Page, lab: BrowsedLab
) -> None:
    page.goto(lab.url("/?q=digits"))
    for k in (1, 3):
        page.get_by_label(f"Select digits K={k}").check()
    page.get_by_role("link", name="Compare").click()
    chart = page.get_by_role("img", name="Score by mask size")
    for k in (1, 3):
        expect(chart).to_have_attribute("aria-label", containing(f"digits K={k}: 63 points"))
    expect(page.locator(".u-legend tr:visible")).to_have_count(
        2
    )  # a mean each, no seeds; x under the cursor
    runs = page.get_by_role("region", name="Runs")
    expect(runs.get_by_role("columnheader").get_by_role("button")).to_have_text(
        ["Run", "model.latent_dim", "data.latent_dim", "LML", "MPT"]
    )
    rows = runs.locator("tbody tr")
    cells = [re.compile(rf"K={k}\s*K = {k}.*{k}{k}\s*−6{k}\.34") for k in (1, 3)]
    expect(rows).to_have_text(cells)
    expect(runs.locator("strong")).to_have_count(0)  # none is the best
    expect(page.get_by_text("The data differ (data.latent_dim)")).to_be_visible()
    runs.get_by_role("button", name="model.latent_dim").click()
    runs.get_by_role("button", name="model.latent_dim").click()
    expect(rows).to_have_text(cells[::-1])
    headers = runs.get_by_role("columnheader").get_by_role("button")
    page.get_by_role("switch", name="Only what differs").uncheck()
    expect(headers.filter(has_text="design")).to_have_count(1)  # the same in both
    page.set_viewport_size(PHONE)
    rows.first.scroll_into_view_if_needed()
    runs.evaluate("one => one.scrollTo(one.scrollWidth, 0)")
    expect(rows.first.get_by_role("link")).to_be_in_viewport(ratio=1)  # the first column stays
    page.set_viewport_size(DESK)
    page.get_by_role("switch", name="Only what differs").check()
    expect(headers).to_have_count(5)
    page.goto(lab.url(f"/compare?ids={lab.ids['succeeded 3']},{lab.ids['succeeded 1']}"))
    swatch = rows.first.locator(".swatch")
    expect(swatch).to_have_attribute("style", containing("rgb"))
    before = swatch.get_attribute("style") or ""
    page.get_by_label("Colour by").select_option("data.latent_dim")
    expect(swatch).not_to_have_attribute("style", before)


def test_experiments_are_cancelled_on_their_page_and_in_the_list(
    page: Page, lab: BrowsedLab
) -> None:
    ids = [submitted(lab.database, name=f"unwanted {i}") for i in range(3)]
    page.goto(lab.url(f"/experiments/{ids[0]}"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_contain_text("Cancel this run?")
    expect(page.get_by_role("button", name="Cancel the run")).to_be_focused()
    assert lab.status(ids[0]) == Status.QUEUED
    page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    expect(page.locator(".first .status")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    page.goto(lab.url("/?q=unwanted"))
    for i in range(3):
        page.get_by_label(f"Select unwanted {i}").check()
    selected = page.get_by_role("group", name="Selected experiments")
    selected.get_by_role("button", name="Cancel 2 runs").click()  # of three, one has ended
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    assert [lab.status(one) for one in ids[1:]] == [Status.QUEUED] * 2
    selected.get_by_role("button", name="Cancel 2 runs").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 2 runs").click()
    expect(page.get_by_text("2 experiments cancelled")).to_be_visible()
    assert [lab.status(one) for one in ids] == [Status.CANCELLED] * 3
    page.get_by_label("Select all of this page").check()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Keep")).to_be_focused()  # Enter deletes nothing
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No experiment matches")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("3 experiments brought back")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(3)


def test_a_pausing_run_can_be_resumed(page: Page, lab: BrowsedLab) -> None:
    one = submitted(lab.database, name="long")
    change(lab.database, one, status=Status.RUNNING)
    page.goto(lab.url(f"/experiments/{one}"))
    buttons = page.get_by_role("group", name="What to do with it").get_by_role("button")
    expect(buttons).to_have_text(["Pause", "Cancel", "Share", "Pin"])
    page.get_by_role("button", name="Pause").click()
    expect(buttons).to_have_text(["Resume", "Cancel", "Share", "Pin"])
    page.get_by_role("button", name="Resume").click()
    expect(buttons).to_have_text(["Pause", "Cancel", "Share", "Pin"])


def test_the_list_is_filtered_by_status_and_family(page: Page, lab: BrowsedLab) -> None:
    kept = [submitted(lab.database, name=f"kept {i}") for i in range(2)]
    change(lab.database, kept[0], status=Status.PAUSED)
    page.goto(lab.url("/?q=kept"))
    page.get_by_text("Filters and columns").click()
    statuses = page.get_by_role("group", name="Status").locator("label")
    expect(statuses).to_have_text([containing(status) for status in Status])
    expect(page.get_by_role("group", name="Family").locator("label")).to_have_count(len(FAMILIES))
    page.get_by_label("paused").check()
    page.get_by_label("ppca", exact=True).check()
    expect(page.locator("tbody tr")).to_have_text([containing("kept 0")])


def test_errors_are_shown_at_their_field(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/new?tab=spec"))
    spec = page.locator("#spec")
    expect(page.get_by_role("heading", name="Estimate")).to_be_visible()
    spec.fill(spec.input_value().replace('"latent_dim": 10', '"latent_dim": 100'))
    error = page.get_by_role("alert")
    expect(error).to_contain_text("/spec/model/latent_dim")
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    error.get_by_role("button", name="line 4").click()
    assert page.evaluate("getSelection().toString()") == '"latent_dim"'
    page.goto(lab.url("/"))
    page.get_by_text("Filters and columns").click()
    page.fill("#filter", "metrics.lml >> 3")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#filter-error")).to_contain_text("column 14")


def test_columns_of_the_list_are_chosen(page: Page, lab: BrowsedLab) -> None:
    """Metrics, and fields of the specs. What all runs share has no column."""
    page.goto(lab.url("/?q=digits&order_by=name+asc"))
    headers = page.get_by_role("columnheader")
    expect(headers).to_have_text(["", "Name ▲", "Status", "Result", "Created"])
    page.get_by_text("Filters and columns").click()
    adding = page.get_by_label("Add a column")
    adding.focus()
    expect(
        page.locator("#columns-offered option[value='spec.model.noise_precision']")
    ).to_have_count(1)
    expect(page.locator("#columns-offered option[value='result']")).to_have_count(0)  # it has one
    adding.fill("lml, spec.model.latent_dim, spec.none")
    adding.press("Enter")
    page.get_by_role("checkbox", name="result").click()
    expected = ["", "Name ▲", "Status", "latent_dim", "none", "LML", "Created"]
    expect(headers).to_have_text(expected)
    rows = page.get_by_role("region", name="Experiments").locator("tbody tr")
    expect(rows).to_have_text(
        [re.compile(rf"K={k}.*succeeded.*{k}\s*–\s*−6{k}\.340") for k in (1, 2, 3)]
    )
    expect(adding).to_be_visible()
    page.reload()
    expect(headers).to_have_text(expected)
    page.goto(lab.url("/"))
    expect(page.get_by_role("columnheader", name="Family")).to_be_visible()


def test_the_list_has_pages(page: Page, lab: BrowsedLab) -> None:
    for i in range(51):
        submitted(lab.database, name=f"many {i}")
    page.goto(lab.url("/?q=many"))
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_text([containing("many 0")])
    page.go_back()
    expect(page.locator("tbody tr")).to_have_count(50)


def test_a_viewer_can_read_and_not_change(stranger: Page, lab: BrowsedLab) -> None:
    shared = succeeded(lab.database, "shared", visibility="lab")
    signed_in(stranger, lab.service, key_of(lab.database, "vera", Role.VIEWER))
    stranger.goto(lab.url(f"/experiments/{shared}"))
    expect(stranger.get_by_text("local shares this with the lab")).to_be_visible()
    for name in ("Cancel", "Delete", "Share", "Pin"):
        expect(stranger.get_by_role("button", name=name)).to_have_count(0)
    stranger.goto(lab.url("/new"))
    expect(stranger.get_by_text("You may only look")).to_be_visible()


def test_pages_of_members_have_their_projects(page: Page, stranger: Page, lab: BrowsedLab) -> None:
    """Pages of users who are in no project have nothing of projects."""
    key = key_of(lab.database, "paula", Role.MEMBER)
    lab.api.add_project("vision", members=["paula"])
    signed_in(stranger, lab.service, key)
    stranger.goto(lab.url("/new?tab=spec"))
    expect(stranger.get_by_role("heading", name="Estimate")).to_be_visible()
    stranger.get_by_label("Project").select_option("vision")
    stranger.locator("#name").fill("of us")
    stranger.get_by_role("button", name="Submit").click()
    stranger.wait_for_url("**/experiments/*")
    facts = stranger.locator("dl.facts").first
    expect(facts).to_contain_text("Visible toproject vision")
    buttons = stranger.get_by_role("group", name="What to do with it")
    expect(buttons).to_contain_text("Make privateShare with the lab")
    buttons.get_by_role("button", name="Make private").click()
    expect(facts).to_contain_text("Visible toits owner")
    buttons.get_by_role("button", name="Share with vision").click()
    expect(facts).to_contain_text("Visible toproject vision")
    for path, count in (("/?whose=project", 1), ("/sweeps?whose=project", 0)):
        stranger.goto(lab.url(path))
        expect(stranger.locator("#whose")).to_have_value("project")
        expect(stranger.locator("tbody tr")).to_have_count(count)
    lab.api.change_project("vision", open=False)
    stranger.goto(lab.url("/new?tab=spec"))
    expect(stranger.get_by_role("heading", name="Estimate")).to_be_visible()
    expect(stranger.get_by_label("Project")).to_have_count(0)
    for path in ("/", "/sweeps", "/new"):
        page.goto(lab.url(path))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator("#whose" if path != "/new" else "#name")).to_have_count(1)
        expect(page.get_by_text(re.compile("project", re.IGNORECASE))).to_have_count(0)


def test_experiments_of_others_are_not_shown(stranger: Page, lab: BrowsedLab) -> None:
    signed_in(stranger, lab.service, key_of(lab.database, "otto", Role.MEMBER))
    stranger.goto(lab.url(f"/experiments/{lab.ids['running']}"))
    expect(stranger.get_by_text("There is nothing here for you")).to_be_visible()
    stranger.goto(lab.url("/"))
    expect(stranger.get_by_text("No experiments yet")).to_be_visible()


def test_a_revoked_key_signs_its_browsers_out(stranger: Page, lab: BrowsedLab) -> None:
    key = key_of(lab.database, "rita", Role.MEMBER)
    signed_in(stranger, lab.service, key)
    expect(stranger.get_by_text("No experiments yet")).to_be_visible()
    with lab.database.transaction() as session:
        user = accounts.find(session, "rita")
        assert user is not None
        accounts.revoke(session, user, key.split("_")[1])
    stranger.wait_for_url("**/sign-in?next=%2F")


def test_a_name_made_of_markup_is_only_text(page: Page, lab: BrowsedLab) -> None:
    for path in ("/?q=onerror", f"/experiments/{lab.ids['markup']}"):
        page.goto(lab.url(path))
        expect(page.get_by_text(MARKUP).first).to_be_visible()
        expect(page.get_by_text("<i>tag</i>")).to_be_visible()
        expect(page.locator("main img")).to_have_count(0)
    page.goto(lab.url(f"/compare?ids={lab.ids['markup']},{lab.ids['long']}"))
    expect(page.locator(".u-legend")).to_contain_text(MARKUP)


def test_a_page_recovers_after_an_outage(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/?q=the+run"))
    expect(page.get_by_text("the run that one watches")).to_be_visible()
    lab.service.stop()
    expect(page.get_by_text("The service does not answer")).to_be_visible()
    expect(page.get_by_text("the run that one watches")).to_be_visible()
    submitted(lab.database, name="the run meanwhile")
    lab.service.start()
    expect(page.get_by_text("the run meanwhile")).to_be_visible()
    expect(page.get_by_text("The service does not answer")).to_have_count(0)


@pytest.mark.slow
def test_pages_are_for_everyone(browser: Browser, lab: BrowsedLab) -> None:
    """axe-core finds nothing that is serious in either colour scheme, and no page is wider than a
    phone. Dark pages are shown on a wide screen."""
    context = browser.new_context(viewport=PHONE, color_scheme="light", reduced_motion="reduce")
    page = context.new_page()
    signed_in(page, lab.service)
    found = {}
    for name, path in pages(lab.ids).items():
        if name == "docs":
            continue
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        page.goto(lab.url(path))
        page.locator("main h1, main h2").first.wait_for()
        if name == "paper":
            open_rows(page)
        page.evaluate(AXE)
        found[name] = page.evaluate(SERIOUS, ALL)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size(DESK)
        found[f"{name}, dark"] = page.evaluate(SERIOUS, COLOURS)
    context.close()
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def open_rows(page: Page) -> None:
    """Open all rows, and what can be opened in them, by the keyboard."""
    page.locator(".entry").first.wait_for()
    closed = page.locator(".entry details:not([open]) > summary:visible")
    while closed.count():
        summary = closed.first.element_handle()
        summary.press("Enter")
        page.wait_for_function("one => one.parentElement.open", arg=summary)


ALL, COLOURS = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"], ["color-contrast"]
"""Rules that axe checks; in dark mode only the colours differ."""
SERIOUS = """async (runOnly) => (await axe.run({runOnly}))
    .violations.filter(({impact}) => ["serious", "critical"].includes(impact))
    .map(({id, nodes}) => [id, nodes.map((node) => node.html)])"""


def test_the_api_s_document_is_shown(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/docs"))
    expect(page.get_by_text("/v1/experiments:validate")).to_be_visible(timeout=30_000)

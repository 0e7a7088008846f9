"""Parts of pages: the form of a spec, charts, tables, views, admin pages."""

import re
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Locator, Page, expect

from mptcore.presets import PRESETS
from mptlab import Client
from service.experiments.models import Queue
from service.queue import drains, workers
from service.queue.workers import Vitals
from service.vocabulary import Role, Status
from tests.support.attempts import claim_next, submitted
from tests.support.browser import BrowsedLab, containing, signed_in
from tests.support.filled_lab import H100, end, key_of

pytestmark = pytest.mark.slow
"""Each journey takes a browser two seconds of a processor. `make test` runs the main ones, those of
test_browser.py."""


def field(page: Page, path: str) -> Locator:
    """A field of the form, by its place in the spec."""
    return page.locator(f"[id='spec.{path}']")


def said(page: Page, path: str) -> Locator:
    """Return the error messages of the service in this part."""
    return page.locator(f"[id='spec.{path}.hint'].bad-text")


def test_the_form_and_the_json_are_one_spec(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/new?tab=spec"))
    spec = page.locator("#spec")
    field(page, "model.latent_dim").fill("7")
    expect(spec).to_have_value(containing('"latent_dim": 7'))
    spec.fill(spec.input_value().replace('"latent_dim": 7', '"latent_dim": 6'))
    expect(field(page, "model.latent_dim")).to_have_value("6")
    field(page, "seeds").fill("1, 2,")
    expect(spec).to_have_value(re.compile(r'"seeds": \[\s+1,\s+2\s+\]'))
    expect(field(page, "seeds")).to_have_value("1, 2,")  # as it is being typed
    page.get_by_label("train").check()
    expect(said(page, "train.epochs")).to_be_visible()
    field(page, "train.epochs").fill("1e1")
    expect(page.get_by_role("heading", name="Estimate")).to_be_visible()
    expect(spec).to_have_value(re.compile(r'"train": \{\s+"epochs": 10\s+\}'))
    page.get_by_label("train").uncheck()
    expect(spec).not_to_have_value(containing("train"))
    spec.fill("{")
    expect(page.get_by_text("The fields come back")).to_be_visible()


def test_changing_the_source_shows_what_it_needs(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/new?tab=spec"))
    field(page, "data.source").select_option("ppca")
    for name in ("n", "dim", "latent_dim", "noise_precision"):
        expect(said(page, f"data.{name}")).to_be_visible()
    field(page, "data.n").fill("no number")
    expect(said(page, "data.n")).to_contain_text("integer")


FITTED = """async ([files, specs]) => {
    const {partsOf, fitted} = await import(`${files}/schema.js`);
    const parts = partsOf(await (await fetch("/openapi.json")).json());
    return specs.map((spec) => fitted(parts[spec.model.family], spec));
}"""


def test_the_form_has_room_for_all_that_a_spec_may_say(page: Page, lab: BrowsedLab) -> None:
    """The form reproduces each preset of every family exactly."""
    page.goto(lab.url("/new?tab=spec"))
    files = page.locator("link[rel=icon]").evaluate("icon => icon.href").rsplit("/", 1)[0]
    specs = [one.specs[-1] for one in PRESETS.values()]
    kept = page.evaluate(FITTED, [files, [one.model_dump(mode="json") for one in specs]])
    assert {one.model.family for one in specs} >= {"ppca", "linear_vae", "vae", "masked_lm"}
    for spec, found in zip(specs, kept, strict=True):
        assert type(spec).model_validate(found) == spec


def test_many_experiments_are_tagged_at_once(page: Page, lab: BrowsedLab) -> None:
    ids = [submitted(lab.database, name=f"to be tagged {i}", tags=[f"own {i}"]) for i in range(2)]
    page.goto(lab.url("/?q=tagged"))
    for on, tags in (("Add tag", {"own 0", "own 1", "both"}), ("Remove tag", {"own 0", "own 1"})):
        page.get_by_label("Select all of this page").check()
        page.get_by_label("Tag", exact=True).fill("both")
        page.get_by_role("button", name=on).click()
        expect(page.get_by_text("2 experiments")).to_be_visible()
        expect(page.locator("tbody .tag")).to_have_count(4 if "Add" in on else 2)
        assert {tag for one in ids for tag in lab.api.get(one)["tags"]} == tags


def test_a_view_is_kept_by_its_name(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/?q=digits&status=succeeded"))
    page.get_by_role("button", name="Save this view").click()
    page.get_by_label("Name of the view").fill("my digits")
    page.get_by_role("button", name="Save", exact=True).click()
    page.goto(lab.url("/"))
    page.get_by_role("link", name="my digits").click()
    page.wait_for_url("**/?q=digits&status=succeeded")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Forget the view my digits").click()
    expect(page.get_by_role("link", name="my digits")).to_have_count(0)


def test_a_chart_is_saved_as_shown(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url(f"/experiments/{lab.ids['succeeded 2']}"))
    expect(page.locator("canvas")).to_be_visible()
    assert {"seed 4", "seed 44", "mask size m", "score S(m), nats", "60"} <= saved_words(page)
    page.get_by_role("button", name="Zoom in").click()
    page.locator(".u-legend").get_by_text("seed 44").click()
    words = saved_words(page)
    assert not {"60", "seed 44"} & words
    page.get_by_role("button", name="To the right").click()
    assert saved_words(page) != words


def saved_words(page: Page) -> set[str | None]:
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").click()
    assert download.value.suggested_filename == "Score by mask size.svg"
    root = ElementTree.parse(download.value.path()).getroot()
    return {one.text for one in root.findall(".//{*}text")}


def test_the_machine_of_each_attempt_is_shown(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url(f"/experiments/{lab.ids['succeeded 1']}"))
    page.get_by_role("tab", name="What ran where").click()
    attempts = page.get_by_role("tabpanel")
    for text in ("Attempt 1", "3f9a61c07e52d84b", "AMD EPYC 7B13, AVX2", "torch 2.13.0+cpu"):
        expect(attempts).to_contain_text(text)
    expect(attempts.get_by_text("ba891046e6505d7a")).to_be_visible()


def test_a_sweep_over_three_fields_has_parallel_coordinates(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url(f"/sweeps/{lab.ids['wide sweep']}"))
    lines = page.locator(".parallel .line")
    expect(lines).to_have_count(12)
    result = page.get_by_role("region", name="Result")
    expect(result).to_contain_text(re.compile(r"Best LML.*nats.*at K = \d.*data.heldout=0.2"))
    expect(lines.first.locator("title")).to_have_text(
        "point 0: latent dimensions K 1, noise precision 0.05, design of the masks independent, "
        "LML −66"
    )
    # Of the other two fields each choice has a curve of its own.
    legend = page.locator(".u-legend").first
    expect(legend).to_contain_text("noise precision = 5, design of the masks = balanced")
    page.goto(lab.url(f"/sweeps/{lab.ids['sweep']}"))
    expect(page.get_by_role("heading", name="Points")).to_be_visible()
    expect(page.locator(".parallel")).to_have_count(0)


def test_presets_show_the_published_values_beside_ours(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/paper"))
    count = len(PRESETS)
    expect(page.get_by_text(f"0 agree · 1 differ · {count - 1} not run")).to_be_visible()
    figures = page.get_by_role("region", name="Can run here")
    expect(figures.locator("> .entry > details > summary h3")).to_have_text(
        ["Table 1: MPT and LML of PPCA", *(f"Fig. {i}" for i in range(1, 6)), "Table 2",
         "Beyond the paper"]
    )  # fmt: skip
    figure = page.get_by_role("article", name="Fig. 1, left")
    expect(figure).to_be_hidden()
    page.get_by_role("group", name="Fig. 1", exact=True).locator("summary").first.press("Enter")
    expect(figure.locator("svg.thumb")).to_be_visible()
    expect(figure.get_by_role("button", name="Run")).to_be_hidden()
    figure.locator("summary").first.press("Enter")
    expect(figure.locator(".status.differs")).to_be_visible()
    expect(figure.locator(".strip")).to_have_count(10)
    expect(figure.locator(".strip .bad")).to_have_count(1)
    expect(figure.get_by_role("row", name="LML, seed 44444")).to_contain_text("differs")
    expect(figure.get_by_role("button", name="Run")).to_be_visible()
    assert figure.evaluate("one => one.scrollHeight <= one.clientHeight")  # nothing is cut off
    expect(figure.locator("svg.thumb path")).to_have_count(2)  # the mean over seeds, the limit
    expect(figure).to_contain_text("took less than 1 s")
    bert = page.get_by_role("article", name="GLUE MRPC").first
    page.get_by_role("group", name="Table 2", exact=True).locator("summary").first.click()
    expect(bert.locator(".status")).to_have_text("not run")
    expect(bert.get_by_text("Area −1773.45 pretrained")).to_be_hidden()
    bert.get_by_role("heading").click()
    expect(bert.get_by_text("Area −1773.45 pretrained")).to_be_visible()
    expect(bert).to_contain_text("needs mrpc, bert-base-uncased")
    expect(bert.locator("svg")).to_have_count(0)
    figure.get_by_text("Curves, with what was published").click()
    expect(figure.locator(".u-legend").first).to_contain_text("published limit")


def test_the_lab_over_the_last_hours_and_what_admins_see(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/lab"))
    use = page.get_by_role("img", name="Use of workers")
    expect(use).to_have_attribute("aria-label", re.compile("node2:gpu0: 3[01] points"))
    page.get_by_label("The last", exact=True).select_option("1")
    expect(use).to_have_attribute("aria-label", re.compile("node2:gpu0: 1[23] points"))
    users = page.get_by_role("region", name="Users")
    expect(users.get_by_role("row", name="local")).to_contain_text("admin")
    expect(page.get_by_role("region", name="Audit log")).to_have_count(0)
    page.get_by_role("tab", name="Audit log").click()
    page.get_by_label("User", exact=True).fill("mpt migrate")
    page.get_by_role("button", name="Show").click()
    done = page.get_by_role("region", name="Audit log").locator("tbody tr")
    expect(done).to_have_text([containing("key.added")])


def test_the_lab_shows_whose_run_has_a_slot(page: Page, lab: BrowsedLab) -> None:
    with lab.database.transaction() as session:
        workers.beat(session, "node9:1", Vitals("node9", Queue.CPU, 1))
    submitted(lab.database, name="has a slot", priority=100)
    claim = claim_next(lab.database, worker="node9:1")
    page.goto(lab.url("/lab"))
    worker = page.get_by_role("region", name="Workers").get_by_role("row", name="node9:1")
    expect(worker).to_contain_text("local's has a slot")
    expect(worker.get_by_role("link", name="has a slot")).to_have_attribute(
        "href", f"/experiments/{claim.experiment_id}"
    )
    end(lab.database, claim, Status.SUCCEEDED)
    expect(worker).to_contain_text("idle")
    with lab.database.transaction() as session:
        workers.leave(session, "node9:1")


def test_the_lab_shows_drained_machines(page: Page, lab: BrowsedLab) -> None:
    table = page.get_by_role("region", name="Workers")
    worker = table.get_by_role("row", name="node2:gpu0 NVIDIA H100")  # not a row of a chart
    with lab.database.transaction() as session:
        workers.beat(session, "node2:gpu0", H100)  # the lab was filled some time ago
        drains.drain(session, "node2", "ann")
    try:
        page.goto(lab.url("/lab"))
        expect(worker).to_contain_text("its machine is drained by ann")
    finally:
        with lab.database.transaction() as session:
            drains.undrain(session, "node2")
    page.reload()
    expect(worker).to_be_visible()
    expect(worker).not_to_contain_text("drained")


def test_each_page_announces_a_drain_of_the_next_day(
    page: Page, stranger: Page, lab: BrowsedLab
) -> None:
    """Every user sees it. A later drain is not announced yet, and one that has begun no more."""
    signed_in(stranger, lab.service, key_of(lab.database, "vera", Role.VIEWER))
    worker = page.get_by_role("region", name="Workers").get_by_role("row", name="node2:gpu0 NVIDIA")

    def plan(host: str, **times: float) -> None:
        with lab.database.transaction() as session:
            workers.beat(session, "node2:gpu0", H100)
            drains.drain(session, host, "ann", **times)

    try:
        plan("node2", starts_in_s=7200.0, lasts_s=9000.0)
        plan("node3", starts_in_s=2 * 86_400.0)
        plan("node4")
        for reader in (page, stranger):
            for path in ("/", "/sweeps", "/new", "/paper", "/lab"):
                reader.goto(lab.url(path))
                banner = reader.locator(".banner")
                expect(banner).to_have_count(1)
                expect(banner).to_contain_text("node2 is drained from")
        expect(worker).to_contain_text("starts only runs that end before")
    finally:
        with lab.database.transaction() as session:
            for host in ("node2", "node3", "node4"):
                drains.undrain(session, host)
    page.reload()
    expect(worker).to_be_visible()
    expect(page.locator(".banner")).to_have_count(0)
    expect(worker).not_to_contain_text("drained")


def test_other_users_do_not_see_the_admin_page(stranger: Page, lab: BrowsedLab) -> None:
    signed_in(stranger, lab.service, key_of(lab.database, "mia", Role.MEMBER))
    stranger.goto(lab.url("/lab"))
    expect(stranger.get_by_role("heading", name="My keys")).to_be_visible()
    for name in ("Users", "Audit log"):
        expect(stranger.get_by_role("heading", name=name)).to_have_count(0)


def test_a_run_opens_with_its_result(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url(f"/experiments/{lab.ids['succeeded 2']}"))
    result = page.get_by_role("region", name="Result")
    expect(result.locator(".figure").first).to_contain_text(
        "Log marginal likelihood (LML)−62.340 nats"
    )
    expect(result).to_contain_text("Masked score (MPT)−62.360 ± 0.090 nats")
    expect(result).to_contain_text("they agree: MPT − LML is −0.020 ± 0.090")
    actions = page.get_by_role("group", name="What to do with it").locator("> *")
    expect(actions).to_have_text(["Run again", "More masks", "Share", "Pin", "Delete"])
    expect(page.get_by_role("link", name="weights.safetensors")).to_have_count(0)
    about = page.get_by_text("The shaded area is the MPT score")
    expect(about).to_be_visible()
    page.get_by_label("from 0").uncheck()
    expect(about).to_have_count(0)


def test_a_failed_run_opens_with_the_cause(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url(f"/experiments/{lab.ids['failed']}"))
    blocks = page.locator("main .stack").first.locator("> *")
    expect(blocks.nth(1).locator("strong")).to_have_text("Out of memory")
    expect(page.get_by_text("Curves appear here")).to_have_count(0)


def test_a_list_on_a_phone_shows_a_metric(page: Page, lab: BrowsedLab) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(lab.url("/?q=digits&order_by=name+asc"))
    expect(page.locator(".only-small").first).to_have_text("LML −61.340")
    expect(page.locator(".only-small").first).to_be_visible()
    page.set_viewport_size({"width": 1440, "height": 844})
    expect(page.locator(".only-small").first).to_be_hidden()


def test_experiments_without_a_name_have_a_title(page: Page, lab: BrowsedLab) -> None:
    """The spec in short; of a sweep's point the swept fields."""
    made = submitted(lab.database, tags=["nameless"])
    page.goto(lab.url("/?q=nameless"))
    expect(page.locator("a.name.muted")).to_have_text(["ppca · K 2 · drawn 50 × 6"])
    page.goto(lab.url(f"/experiments/{made}"))
    expect(page.get_by_role("heading", level=1)).to_have_text("ppca · K 2 · drawn 50 × 6")
    titles = [one.document["title"] for one in lab.api.experiments.list(filter='tag = "by n"')]
    assert titles == [f"noise by hand: n {n}" for n in (200, 100, 50)]


def test_the_help_links_to_its_documents_on_a_phone(page: Page, lab: BrowsedLab) -> None:
    """The list of documents is below the text there."""
    link = page.get_by_role("link", name="All documents")
    page.goto(lab.url("/help"))
    expect(link).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 844})
    link.click()
    expect(page.get_by_role("link", name="Settings").last).to_be_in_viewport()


def test_headers_sort_a_list_and_a_table(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/"))
    header = page.get_by_role("columnheader", name="Name")
    header.get_by_role("button").click()
    page.wait_for_url("**/?order_by=name+asc")
    expect(header).to_have_attribute("aria-sort", "ascending")
    header.get_by_role("button").click()
    page.wait_for_url("**/?order_by=name+desc")
    page.goto(lab.url(f"/sweeps/{lab.ids['sweep']}"))
    points = page.get_by_role("region", name="Points").locator("tbody th")
    expect(points).to_have_text(["0", "1", "2"])
    page.get_by_role("button", name="LML", exact=True).click()
    expect(points).to_have_text(["1", "0", "2"])  # the largest first, and last what has none
    page.get_by_role("button", name="LML", exact=True).click()
    expect(points).to_have_text(["0", "1", "2"])


def test_all_quick_presets_are_queued_at_once(stranger: Page, lab: BrowsedLab) -> None:
    """The last test: a lab with a second user keeps a worker for that one."""
    key = key_of(lab.database, "pia", Role.MEMBER)
    signed_in(stranger, lab.service, key)
    stranger.goto(lab.url("/paper"))
    button = stranger.get_by_role("button", name="quick ones")
    (count,) = re.findall(r"\d+", button.inner_text())
    button.click()
    expect(stranger.get_by_text(f"{count} running")).to_be_visible()
    expect(button).to_have_count(0)
    with Client(lab.service.url, key) as api:
        assert {"preset:table1", "preset:fig4-right"} <= {
            tag for one in api.experiments() for tag in one["tags"]
        }
        api.cancel_matching(status="queued")

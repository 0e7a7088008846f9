"""The table of scores of texts on the page of an experiment."""

import csv
import math
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from service.db.engine import Database
from service.records import texts
from service.settings import Settings
from tests.service.ui.screenshots import PHONE
from tests.service.ui.test_browser import ALL, AXE, SERIOUS
from tests.support import tiny_lm
from tests.support.browser import BrowsedLab, Service, containing, signed_in, watched
from tests.support.filled_lab import LONG, MARKUP, PAIRS, mutation_rows, text_rows
from tests.support.processes import embedded_service

pytestmark = pytest.mark.slow
"""Each journey takes a browser two seconds of a processor. `make test` runs the main ones, those of
test_browser.py."""
ROWS = text_rows()


@pytest.fixture
def section(page: Page, lab: BrowsedLab) -> Locator:
    """The section of the made-up run."""
    page.goto(lab.url(f"/experiments/{lab.ids['texts']}"))
    return section_of(page)


def section_of(page: Page) -> Locator:
    found = page.locator("section.texts")
    expect(found.locator("tbody tr").first).to_be_visible()
    return found


def rows_of(section: Locator) -> Locator:
    """The rows that are not the content of an open one."""
    return section.locator("tbody tr:has(> th)")


def sort_by(section: Locator, name: str) -> None:
    section.get_by_role("button", name=name, exact=True).click()


def open_row(section: Locator, text: str) -> Locator:
    section.get_by_role("button", name=text).first.click()
    return section.locator("tr.opened")


def test_changes_of_a_letter_are_on_a_map(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url(f"/experiments/{lab.ids['mutations']}"))
    shown = page.get_by_role("region", name="Map of mutations")
    expect(shown.locator("thead th")).to_have_text(["", "M1", "K2", "T3", "A4", "Y5"])
    expect(shown.locator("tbody th")).to_have_text(["A", "K", "W"])
    cells = {row["text"]: row["masked_marginal"] for row in mutation_rows()}
    expect(shown.get_by_title("M1A: 0.5 nats")).to_have_class("step-0")
    expect(shown.get_by_title("Y5W")).to_have_class("step-5")
    for name in ("K2A", "K2K"):  # without a score, and the wild type itself
        assert cells.get(name) is None
        expect(shown.get_by_title(name, exact=True)).to_have_count(1)
    rows = page.locator("section.texts > .scroll tbody tr:has(> th)")
    expect(rows).to_have_count(len(cells))


def test_a_table_that_is_too_long_has_no_map(page: Page, lab: BrowsedLab) -> None:
    """A map of its first rows would show changes as if they had no score."""
    names = ("M1A", "K2A")
    items = [{"text": name, "masked_marginal": -1.0} for name in names for _ in range(5000)]
    answer = {"columns": [*items[0]], "items": items, "total": 10**6, "next_offset": 10_000}
    page.route(re.compile("texts.*columns=text"), lambda route: route.fulfill(json=answer))
    page.goto(lab.url(f"/experiments/{lab.ids['mutations']}"))
    section = section_of(page)
    expect(section.get_by_text("Loading")).to_have_count(0)
    expect(section.get_by_role("region", name="Texts")).to_be_visible()
    expect(section.get_by_role("region", name="Map of mutations")).to_have_count(0)


def test_a_score_sorts_all_pages(section: Locator) -> None:
    expect(section.locator("thead th")).to_have_text(
        [
            "Row ▲",
            "Text",
            "pll",
            "pll word l2r",
            "cumulative",
            "per token",
            "difference",
            "tokens",
            "Group",
        ]
    )
    expect(rows_of(section)).to_have_count(20)
    shown = ["0", PAIRS[0], "−16.5", "−17.5", "−16.377 ± 0.040", "−1.5", "0", "11", "pair 0"]
    cells = rows_of(section).first.locator("td, th")
    expect(cells).to_have_text([containing(one) for one in shown])
    last = rows_of(section).first.locator(".token").last
    expect(last).to_have_class("token step-3")  # coloured without opening the text
    sort_by(section, "pll")
    order = sorted(ROWS, key=lambda row: -math.inf if row["pll"] is None else row["pll"])[::-1]
    first = section.locator("tbody tr:has(> th) td:first-child")
    expect(first).to_have_text([str(row["row"]) for row in order[:20]])
    header = section.get_by_role("columnheader", name="pll", exact=True)
    expect(header).to_have_attribute("aria-sort", "descending")
    section.get_by_role("button", name="Next texts").click()
    expect(first).to_have_text([str(row["row"]) for row in order[20:]])
    expect(section.get_by_role("status")).to_have_text("Texts 21 to 33 of 33")
    expect(section.get_by_role("button", name="Next texts")).to_have_count(0)
    section.get_by_role("button", name="Previous texts").click()
    expect(section.get_by_role("status")).to_have_text("Texts 1 to 20 of 33")
    section.get_by_role("button", name="Next texts").click()
    sort_by(section, "pll")  # the lowest first, from the first page
    expect(first.first).to_have_text(str(order[-2]["row"]))
    expect(section.get_by_role("status")).to_have_text("Texts 1 to 20 of 33")


def test_a_group_is_shown_alone(section: Locator) -> None:
    sort_by(section, "pll")
    section.get_by_label("Group", exact=True).fill("pair 12")
    section.get_by_role("button", name="Show", exact=True).click()
    expect(rows_of(section)).to_have_count(2)
    names = section.get_by_role("columnheader").all_inner_texts()
    place = next(i for i, name in enumerate(names, 1) if name.startswith("difference"))
    differences = section.locator(f"tbody td:nth-child({place})")
    expect(differences).to_have_text(["0", "−0.333"])  # the reference first
    expect(section.get_by_role("status")).to_have_text("Texts 1 to 2 of 2")
    section.get_by_role("button", name="All groups").click()
    expect(rows_of(section)).to_have_count(20)
    section.get_by_role("button", name="Next texts").click()
    section.get_by_role("button", name="pair 14").first.click()
    expect(rows_of(section)).to_have_count(2)
    expect(section.get_by_label("Group", exact=True)).to_have_value("pair 14")
    section.get_by_label("Group", exact=True).fill("pair 99")
    section.get_by_role("button", name="Show", exact=True).click()
    expect(section.get_by_role("status")).to_have_text("No text is in this group")


def test_an_open_row_has_the_tokens_of_its_text(section: Locator, page: Page) -> None:
    sort_by(section, "pll")
    section.get_by_role("button", name="Next texts").click()
    opened = open_row(section, "house 10")  # its place on the page is not its row
    tokens = opened.locator(".token[role=img]")
    expect(tokens.last).to_have_text("10")
    expect(tokens).to_have_count(11)
    for attribute in ("title", "aria-label"):
        expect(tokens.nth(2)).to_have_attribute(attribute, "cat: −0.6 nats")
    expect(tokens.nth(1)).to_have_class("token step-0")
    expect(tokens.nth(2)).to_have_class("token step-1")
    number = opened.locator(".tokens + p")
    tokens.nth(2).hover()
    expect(number).to_have_text("cat: −0.6 nats")
    tokens.nth(2).focus()
    for key, there in (("ArrowRight", 3), ("End", 10), ("ArrowRight", 10), ("ArrowLeft", 9)):
        page.keyboard.press(key)
        expect(tokens.nth(there)).to_be_focused()
    expect(number).to_have_text("house: −2.7 nats")
    expect(opened.locator(".token[tabindex='0']")).to_have_count(1)  # one stop of the Tab key
    opened.get_by_label("pll_word_l2r").check()
    expect(tokens.nth(2)).to_have_attribute("title", "cat: −0.8 nats")
    expect(opened.locator("dl")).to_contain_text("cumulative_masks800")
    sort_by(section, "tokens")
    expect(section.locator("tr.opened")).to_have_count(0)


def test_a_text_is_only_text_and_cut_in_its_row(section: Locator) -> None:
    section.get_by_role("button", name="Next texts").click()
    expect(section.get_by_role("button", name=MARKUP)).to_be_visible()
    expect(open_row(section, MARKUP).locator(".tokens")).to_have_text(MARKUP)
    expect(section.locator("img, b")).to_have_count(0)
    long = rows_of(section).nth(-2).get_by_role("button")
    expect(long).to_have_text(f"▸{LONG[:120]}…")
    long.click()
    expect(section.locator("tr.opened .tokens").last).to_have_text(LONG.strip())
    without = rows_of(section).last
    expect(without.locator("td")).to_have_text(["32", "–", "–", "–", "–", "–", "–", "–"])
    expect(without.locator("td").nth(1)).to_have_attribute("title", "no token can be masked")
    without.get_by_role("button").click()
    expect(section.locator("tr.opened").last).to_contain_text("reasonno token can be masked")


def test_the_csv_has_all_rows(
    section: Locator, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the service gives them in several pages."""
    sort_by(section, "pll")
    expect(section.locator("tbody td").first).to_have_text("30")
    monkeypatch.setattr(texts, "MAX_PAGE_BYTES", 20_000)
    pages: list[str] = []
    page.on("response", lambda answer: pages.append(answer.url) if "csv" in answer.url else None)
    with page.expect_download() as download:
        section.get_by_role("button", name="CSV").click()
    download.value.save_as(tmp_path / "texts.csv")
    assert len(pages) > 1
    with (tmp_path / "texts.csv").open(newline="") as file:
        found = [*csv.DictReader(file)]
    assert {row["row"]: row["text"] for row in found} == {
        str(row["row"]): row["text"] for row in ROWS
    }
    assert [row["row"] for row in found[:2]] == ["30", "0"]


def test_open_rows_are_for_everyone(browser: Browser, lab: BrowsedLab) -> None:
    context = browser.new_context(viewport=PHONE, color_scheme="light", reduced_motion="reduce")
    page = context.new_page()
    signed_in(page, lab.service)
    page.goto(lab.url(f"/experiments/{lab.ids['texts']}"))
    section = section_of(page)
    section.get_by_role("button", name="Next texts").click()
    expect(open_row(section, LONG[:20]).locator(".token.step-5").first).to_be_visible()
    page.evaluate(AXE)
    found = page.evaluate(SERIOUS, ALL)
    page.emulate_media(color_scheme="dark")
    found += page.evaluate(SERIOUS, ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    width = section.locator("tr.opened .stack").first.evaluate("one => one.clientWidth")
    context.close()
    assert found == []
    assert width <= 390  # an open row is read without scrolling to the side


LINES = [
    "the old red cat sat on a red mat",
    "the old red cat on sat mat a zebra",  # an unknown token
    "a dog ran on the old mat on the mat",
    "a dog on ran the old mat the on mat",
]
SCORED = {
    "model": {"family": "masked_lm", "checkpoint": "tiny"},
    "data": {"source": "text", "lines": LINES},
    "evaluate": {"texts": {"scores": ["cumulative", "pll"], "target_std_err": 0.5,
                           "per_token": True, "group_size": 2}},
    "compute": {"threads": 1},
}  # fmt: skip


@pytest.fixture
def scored(settings: Settings, tmp_path: Path) -> Iterator[tuple[BrowsedLab, list[Any]]]:
    """A lab whose worker has scored the lines by a tiny checkpoint, and the rows of the API."""
    models = tiny_lm.checkpoint(tmp_path / "models" / "tiny").parent
    service = Service(settings)  # its port and key; the processes serve it
    with (
        embedded_service(settings, tmp_path / "log", MPT_MODELS_DIR=str(models)) as lab,
        closing(Database(settings.url)) as database,
        lab.client() as api,
    ):
        service.port, service.url = lab.port, str(api.url)
        experiment = api.wait(api.submit(SCORED)["id"])
        assert experiment["status"] == "succeeded", experiment["failure"]
        names = ["text", "pll", "cumulative", "cumulative_std_err", "difference",
                 "difference_std_err", "unknown", "by_token"]  # fmt: skip
        rows = api.texts(experiment["id"], columns=names)
        yield BrowsedLab(service, database, api, {"scored": experiment["id"]}), rows


def with_error(value: float, error: float) -> str:
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}".replace("-", "−")


@pytest.mark.timeout(900)  # the fixture starts a service with PyTorch
def test_a_run_of_a_worker_is_shown(browser: Browser, scored: tuple[BrowsedLab, list[Any]]) -> None:
    lab, rows = scored
    context = browser.new_context()
    signed_in(context.new_page(), lab.service)
    for page in watched(context, lab):
        page.goto(lab.url(f"/experiments/{lab.ids['scored']}"))
        section = section_of(page)
        sort_by(section, "cumulative")
        sort_by(section, "cumulative")
        lowest = sorted(rows, key=lambda row: row["cumulative"])
        expect(rows_of(section).locator("th")).to_have_text(
            [containing(row["text"]) for row in lowest]
        )
        expect(section.locator("thead th").nth(7)).to_have_text("unknown")
        expect(rows_of(section).locator("td:nth-child(8)")).to_have_text(
            [str(row["unknown"]) for row in lowest]
        )
        cells = rows_of(section).first.locator("td")
        found = with_error(lowest[0]["cumulative"], lowest[0]["cumulative_std_err"])
        expect(cells.nth(1)).to_have_text(found)
        section.get_by_role("button", name="1", exact=True).first.click()
        expect(rows_of(section).locator("th")).to_have_text([containing(one) for one in LINES[2:]])
        difference = with_error(rows[3]["difference"], rows[3]["difference_std_err"])
        expect(rows_of(section).nth(1).locator("td").nth(4)).to_have_text(difference)
        tokens = open_row(section, LINES[3]).locator(".token[role=img]")
        expect(tokens).to_have_text(LINES[3].split())
        titles = tokens.evaluate_all("all => all.map((one) => one.title)")
        values = [re.search("[−.0-9e]+(?= nats)", title) for title in titles]
        assert [float(one[0].replace("−", "-")) for one in values if one] == pytest.approx(
            [one["pll"] for one in rows[3]["by_token"]], rel=1e-3
        )
    context.close()

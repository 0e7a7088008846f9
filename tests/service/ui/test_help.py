"""The documents as pages: all exist, and their links are valid."""

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.ui.help import ADDRESSES, DOCUMENTS, README, documents

ROOT = Path(__file__).parents[3]
DOCS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
DOCS += [file for kind in ("md", "ipynb") for file in (ROOT / "docs").rglob(f"*.{kind}")]


def test_every_page_links_to_the_help(api: TestClient) -> None:
    assert all('<a href="/help">Help</a>' in api.get(path).text for path in ("/", "/lab"))


@pytest.mark.parametrize(
    ("address", "entry"),
    [("/help/spec", "Help"), ("/experiments/0", "Experiments"), ("/compare", "Experiments"),
     ("/sweeps/0", "Sweeps"), ("/sweeps", "Sweeps")],
)  # fmt: skip
def test_each_page_marks_its_entry_of_the_menu(api: TestClient, address: str, entry: str) -> None:
    marked = re.findall(r'aria-current="(?:page|true)">([^<]+)</a>\s', api.get(address).text)
    assert marked[0] == entry


def test_every_document_has_a_page_of_its_own() -> None:
    assert {file.resolve() for file in ADDRESSES} == set(DOCS)
    assert len(set(ADDRESSES.values())) == len(DOCS)
    assert set(documents()) == set(ADDRESSES.values())


def test_the_help_begins_with_the_readme() -> None:
    first, *others = documents()
    assert first == ADDRESSES[README] == "/help"
    table = README.read_text().split("\n## Documentation\n")[1]
    order = [f"/help/{name.lower()}" for name in re.findall(r"([\w-]+)\.(?:md|ipynb)\)", table)]
    assert others[: len(order)] == order


@pytest.mark.parametrize("address", sorted(ADDRESSES.values()))
def test_a_help_page_loads_only_the_style_and_has_valid_links(
    api: TestClient, address: str
) -> None:
    answer = api.get(address)
    assert answer.status_code == 200
    assert "default-src 'none'; script-src 'self';" in answer.headers["content-security-policy"]
    assert not re.search(r"<script|<style|\sstyle=", answer.text)
    loaded = re.findall(r'<link[^>]* href="([^"]*)"|\ssrc="([^"]{,40})', answer.text)
    local = ("/static/", "data:image/png;base64,", "data:image/svg+xml;base64,")
    assert all(one.startswith(local) for one in map("".join, loaded))
    for target, anchor in re.findall(r'<a [^>]*?href="(?!https?:)([^"#]*)#?([^"]*)"', answer.text):
        found = api.get(target or address)
        assert found.status_code == 200, target
        if anchor:
            assert f' id="{anchor}"' in found.text, (target, anchor)


def test_tables_code_and_headings_are_rendered(api: TestClient) -> None:
    settings, client = (api.get(f"/help/{name}").text for name in ("settings", "client"))
    assert re.search(r"<td><code>MPT_STORE</code></td>", settings)
    assert '<pre><code class="language-python">from mptlab import Client' in client
    assert '<h2 id="from-the-command-line">From the command line</h2>' in client
    assert '<a href="/help#your-first-experiment">' in api.get("/help/api").text
    assert '<a href="/help/client" aria-current="page">' in client


def test_links_without_a_page_are_text(api: TestClient) -> None:
    assert "(../benchmarks/reports/gpu-h100.md)" in (ROOT / "docs/speed.md").read_text()
    assert "<span>report</span>" in api.get("/help/speed").text


def test_the_report_has_its_pictures(api: TestClient) -> None:
    page = api.get("/help/report").text
    assert page.count('<img src="data:image/svg+xml;base64,') > 10
    assert "<h1" in page


def linked(page: str) -> list[str]:
    """Return the addresses that a search found, in their order."""
    results = page.partition('<ul class="results">')[2].split("</article>")[0]
    return re.findall(r'<li>\s*<a href="([^"#]*)', results)


@pytest.mark.parametrize("address", sorted(ADDRESSES.values()))
def test_each_document_is_found_by_its_words(api: TestClient, address: str) -> None:
    """Search for the words of its title, and for some in the middle of its longest section."""
    document = documents()[address]
    assert linked(api.get("/help", params={"q": document.title}).text)[0] == address
    longest = max(document.sections, key=lambda one: len(one.text))
    middle = len(longest.text) // 2
    words = re.findall(r"\w{4,}", longest.text[middle : middle + 100])
    assert address in linked(api.get("/help", params={"q": " ".join(words)}).text)


def test_a_search_shows_the_words_where_they_are(api: TestClient) -> None:
    """In any order, in small or capital letters; without a result it says so."""
    page = api.get("/help", params={"q": "models_dir mpt"}).text
    assert "<mark>" in page
    shown = re.search(r"<h1>(\d+) sections? with “models_dir mpt”", page)
    assert shown
    assert int(shown[1]) == len(re.findall("<mark>.*</p>", page))
    assert "/help/settings" in linked(page)
    assert not re.search(r"<script|<style", page)
    assert "Nothing found for “qwertz”" in api.get("/help", params={"q": "qwertz"}).text
    assert "&lt;b&gt;" in api.get("/help", params={"q": "<b>"}).text
    assert linked(api.get("/help", params={"q": " "}).text) == []


def test_an_unknown_document(api: TestClient) -> None:
    answer = api.get("/help/nothing")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "there is no such page: /help lists them"


def test_the_image_contains_the_linked_files() -> None:
    """In the folder of documents there are links to the repository's own files."""
    kept = (ROOT / ".dockerignore").read_text().split()
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    for link in DOCUMENTS.iterdir():
        name = str(link.resolve().relative_to(ROOT))
        assert f"!{name}" in kept
        assert name in " ".join(copied).split()

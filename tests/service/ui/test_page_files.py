"""The pages as files: the files that they may load, and a check of vendored files."""

import hashlib
import json
import re
import tomllib
from glob import glob
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.ui.help import ADDRESSES, DOCUMENTS
from service.ui.pages import EDITION, FILES, PAGES, SCRIPTS, STATIC

ROOT = Path(__file__).parents[3]
VENDORED = json.loads((STATIC / "vendor" / "vendored.json").read_text())


@pytest.mark.parametrize("path", [*PAGES, "/docs"])
def test_a_page_loads_only_its_own_files(api: TestClient, path: str) -> None:
    answer = api.get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|https?://", answer.text)
    named = re.findall(r'(?:src|href)="(/static/[^"]*)"', answer.text)
    assert named
    for file in named:
        found = api.get(file)
        assert found.status_code == 200
        assert found.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_a_file_of_another_edition_is_not_kept(api: TestClient) -> None:
    assert "immutable" in api.get(f"/static/{EDITION}/style.css").headers["cache-control"]
    assert api.get("/static/0/style.css").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["", "nothing.js", "../pages.py", "%2e%2e/pages.py", "vendor"])
def test_other_files_are_not_served(api: TestClient, name: str) -> None:
    assert api.get(f"/static/{EDITION}/{name}").status_code == 404


@pytest.mark.parametrize("path", ["/nothing", "/help/nothing", "/sweeps/a/b"])
def test_a_browser_gets_a_page_for_an_unknown_path(api: TestClient, path: str) -> None:
    """Other clients get a problem, and so does each path of the API."""
    page = api.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 404
    assert "This page does not exist" in page.text
    assert 'action="/help"' in page.text
    assert api.get(path).json()["status"] == 404
    assert api.get("/v1/nothing", headers={"Accept": "text/html"}).json()["status"] == 404


def test_vendored_files_equal_the_published_ones() -> None:
    listed = {name: part for part in VENDORED for name in part["files"]}
    there = {name.removeprefix("vendor/") for name in FILES if name.startswith("vendor/")}
    licences = {part["licence_file"] for part in VENDORED}
    assert there == {*listed, *licences, "vendored.json"}
    for name, part in listed.items():
        content = (STATIC / "vendor" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == part["files"][name]
    for part in VENDORED:
        assert len((STATIC / "vendor" / part["licence_file"]).read_text()) > 500


AXE = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""SHA-256 of axe.min.js in axe-core 4.14.1."""


def test_vendored_test_tools_equal_the_published_ones() -> None:
    content = (ROOT / "tests" / "support" / "axe" / "axe.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == AXE


def test_our_scripts_import_existing_files_and_insert_no_markup() -> None:
    ours = {name: file.read_text() for name, file in FILES.items() if name.endswith(".js")}
    for name, text in ours.items():
        if name.startswith("vendor/"):
            continue
        for target in re.findall(r'from "([^"]*)"', text):
            assert ((STATIC / name).parent / target).resolve() in FILES.values(), (name, target)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|dangerously|\beval\(", text), name


def test_the_distribution_has_every_file() -> None:
    """The patterns are read as setuptools reads them."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folder = ROOT / "service" / "ui"
    patterns = tool["package-data"]["service.ui"]
    packed = {
        Path(one) for pattern in patterns for one in glob(f"{folder}/{pattern}", recursive=True)
    }
    pictures = [*DOCUMENTS.glob("docs/*/*.png"), *DOCUMENTS.glob("docs/*/*.svg")]
    assert {*FILES.values(), *(folder / "templates").iterdir(), *ADDRESSES, *pictures} <= packed


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_page_names_each_script_that_it_runs(name: str) -> None:
    """Scripts that a script imports are included."""
    scripts = SCRIPTS[name]
    assert {"main.js", f"pages/{name}.js", "vendor/preact-htm.js"} <= {*scripts}
    assert len({*scripts}) == len(scripts)
    for script in scripts:
        for target in re.findall(r'from "([^"]*)"', FILES[script].read_text()):
            file = ((STATIC / script).parent / target).resolve()
            assert file.relative_to(STATIC).as_posix() in scripts

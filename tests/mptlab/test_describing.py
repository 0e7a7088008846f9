"""Commands that name, tag, share and hand on an experiment, typed by its name."""

import stat
import zipfile
from pathlib import Path

import pytest

from mptlab import Client
from tests.support.commands import mpt, mpt_here
from tests.support.ppca_spec import ppca_spec


@pytest.fixture(scope="module")
def run(environment: dict[str, str]) -> str:
    key = (Path(environment["MPT_STORE"]) / "api-key").read_text().strip()
    with Client(environment["MPT_URL"], key) as client:
        made = client.experiments.create(ppca_spec(seeds=[77]), name="thesis", wait=True)
    return made.id


def test_an_experiment_is_described(environment: dict[str, str], client: Client, run: str) -> None:
    assert mpt_here(environment, "tag", "thesis", "a", "b") == (0, f"{run} a, b\n", "")
    assert mpt_here(environment, "tag", "thesis", "c", "b") == (0, f"{run} a, c, b\n", "")
    assert mpt_here(environment, "tag", "thesis", "--remove", "a", "b") == (0, f"{run} c\n", "")
    assert mpt_here(environment, "note", "thesis", "for chapter 2")[0] == 0
    assert client.get(run)["note"] == "for chapter 2"
    assert mpt_here(environment, "note", "thesis", "")[0] == 0
    assert client.get(run)["note"] is None
    assert mpt_here(environment, "rename", "thesis", "k4")[1] == f"{run} k4 (private)\n"
    assert mpt_here(environment, "rename", "k4", "thesis")[1] == f"{run} thesis (private)\n"


def test_a_colleague_reads_a_shared_run_by_its_name(environment: dict[str, str], run: str) -> None:
    _, key, _ = mpt_here(environment, "admin", "user", "add", "eve")
    eve = {**environment, "MPT_API_KEY": key.strip()}
    assert mpt_here(eve, "show", "local/thesis")[0] == 1
    assert mpt_here(environment, "share", "thesis")[1] == f"{run} thesis (lab)\n"
    code, shown, _ = mpt_here(eve, "show", "local/thesis")
    assert (code, shown.split()[1]) == (0, run)
    assert mpt_here(environment, "unshare", "thesis")[1] == f"{run} thesis (private)\n"
    assert mpt_here(eve, "show", "local/thesis")[0] == 1


@pytest.mark.usefixtures("run")
def test_a_bundle_has_the_name_of_its_run(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mpt_here(environment, "bundle", "thesis") == (0, "thesis.zip\n", "")
    assert zipfile.ZipFile("thesis.zip").testzip() is None
    assert mpt_here(environment, "bundle", "thesis", "b.zip")[1] == "b.zip\n"


def test_a_page_is_opened_signed_in(environment: dict[str, str], run: str, tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    code, shown, error = mpt({**environment, "BROWSER": f"{browser} %s"}, "open", "thesis")
    assert (code, shown) == (0, f"opened /experiments/{run}\n"), error
    link = seen.read_text()
    assert link.startswith(f"{environment['MPT_URL']}/sign-in?next=/experiments/{run}#")
    assert mpt_here(environment, "open", "--json")[1].startswith('"http')

"""The page for new experiments: own data, a checkpoint and texts, and a spec."""

from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Page, expect

from mptlab.uploads import spec_for, spec_of_fitted
from service.accounts import accounts
from service.experiments.filters.fields import FAMILIES
from service.experiments.models import Artifact
from service.vocabulary import Role, Status
from tests.service.ui.screenshots import PHONE
from tests.support.attempts import claim_next, submitted
from tests.support.browser import BrowsedLab, containing, signed_in
from tests.support.filled_lab import end, key_of
from tests.support.ppca_spec import ppca_spec


def csv(name: str, content: str) -> FilePayload:
    return {"name": name, "mimeType": "text/csv", "buffer": content.encode()}


def test_own_data_are_submitted_as_by_the_command(page: Page, lab: BrowsedLab) -> None:
    """A file and a range of K give the sweep of `mpt submit --data FILE --latent-dim 1..3`."""
    rows = "".join(f"{i},{i * i % 7},{-i},{i % 3}\n" for i in range(20))
    page.goto(lab.url("/new"))
    page.set_input_files("#file", csv("mine.csv", "a,b,c,d\n" + rows))
    preview = page.get_by_role("region", name="First lines of the file")
    expect(preview.get_by_role("row").first).to_have_text("abcd")
    expect(page.get_by_text("mine.csv: 20 rows × 4 columns; header: first line.")).to_be_visible()
    page.get_by_role("button", name="Submit 3 runs").click()
    page.wait_for_url("**/sweeps/*")
    sweep = lab.api.get_sweep(page.url.split("/")[-1]).get()
    data = {"source": "upload", "dataset": sweep["spec"]["data"]["dataset"]}
    assert sweep["spec"] == spec_for(data, "ppca", 1)
    assert (sweep["name"], sweep["points"]) == ("mine", 3)


def test_a_table_is_read_again_as_its_options_say(page: Page, lab: BrowsedLab) -> None:
    """Ids and notes are no measurements, as by `mpt`, the client and plain HTTP. The separators of
    a spreadsheet program are recognised."""
    rows = [f"s{i};n;{i},5;{i * i % 5},25;{1 + i % 3}" for i in range(7)]
    page.goto(lab.url("/new"))
    page.set_input_files("#file", csv("e.csv", "\ufeffid;note;2019;2020;2021\n" + "\n".join(rows)))
    preview = page.get_by_role("region", name="First lines of the file")
    expect(preview.get_by_role("row").first.get_by_role("cell")).to_have_text(
        ["id", "note", "2019", "2020", "2021"]
    )
    again = page.get_by_role("button", name="Read e.csv again")
    page.get_by_label("Leave out columns that are not numbers").check()
    again.click()
    expect(page.get_by_role("alert")).to_contain_text("may be the names of the columns or data")
    page.get_by_label("First line", exact=True).select_option("yes")
    page.get_by_label("Leave out columns that are not numbers").uncheck()
    again.click()  # the page has fields for the flags that the message names
    cure = "as ids, or leave out all that are not numbers"
    expect(page.get_by_role("alert")).to_contain_text(cure)
    page.get_by_label("Leave out columns that are not numbers").check()
    page.get_by_role("group", name="Columns of ids").get_by_label("id", exact=True).check()
    again.click()
    summary = "e.csv: 7 rows × 3 columns; header: first line; ids: id; left out: note."
    expect(page.get_by_text(summary)).to_be_visible()
    expect(page.get_by_text("note was left out: not numbers: line 2 is 'n'")).to_be_visible()


def test_a_fitted_model_scores_other_rows_as_by_the_command(
    page: Page, lab: BrowsedLab, tmp_path: Path
) -> None:
    """Its page leads to the form, and the file may have its columns in another order."""
    (tmp_path / "fit.csv").write_text("a,b,c\n1,2,3\n2,3,5\n0,1,7\n3,1,2\n")
    upload = lab.api.upload(tmp_path / "fit.csv")
    data = {"source": "upload", "dataset": upload["id"], "n": 4, "dim": 3}
    model = {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"}
    submitted(lab.database, ppca_spec(model=model, data=data), name="the fitted one", priority=100)
    claim = claim_next(lab.database)
    weights = {"file": "weights.safetensors", "media_type": "application/octet-stream"}
    with lab.database.transaction() as session:
        kept = {"sha256": "0" * 64, "attempt": 1, "seq": 2}
        session.add(Artifact(experiment_id=claim.experiment_id, **weights, **kept))
    end(lab.database, claim, Status.SUCCEEDED)
    fitted = claim.experiment_id
    page.goto(lab.url(f"/experiments/{fitted}"))
    page.get_by_role("link", name="Score other rows").click()
    page.set_input_files("#file", csv("new.csv", "name,c,a,b\nx,1,2,3\ny,2,3,5\nz,0,1,7\n"))
    expect(
        page.get_by_text("new.csv: 3 rows × 3 columns; header: first line; ids: name.")
    ).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(lambda url: "/experiments/" in url and fitted not in url)
    spec = lab.api.get(page.url.split("/")[-1])["spec"]
    data = {"source": "upload", "dataset": spec["data"]["dataset"], "columns": [*"abc"]}
    by_command = lab.api.submit(spec_of_fitted(data, lab.api.get(fitted)))
    assert by_command["spec"] == spec


def test_texts_are_scored_by_a_checkpoint(page: Page, lab: BrowsedLab) -> None:
    page.goto(lab.url("/new"))
    page.get_by_role("tab", name="A checkpoint and texts").click()
    page.get_by_label("Checkpoint", exact=True).fill("tiny")
    page.get_by_label("Texts, one in each line").fill("one text\n\nanother text\n")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/experiments/*")
    spec = lab.api.get(page.url.split("/")[-1])["spec"]
    assert (spec["model"]["checkpoint"], spec["data"]["lines"]) == (
        "tiny", ["one text", "another text"],
    )  # fmt: skip
    assert spec["evaluate"]["texts"]["scores"] == ["pll"]


def test_each_family_begins_with_an_example_that_fits(page: Page, lab: BrowsedLab) -> None:
    """Fields that were changed are kept as far as they fit."""
    page.goto(lab.url("/new?tab=spec"))
    spec = page.locator("#spec")
    for family in FAMILIES:
        page.locator("[id='spec.model.family']").select_option(family)
        expect(spec).to_have_value(containing(f'"family": "{family}"'))
        with page.expect_response(lambda response: response.url.endswith(":validate")) as checked:
            page.fill("#name", family)
        assert checked.value.ok, family
    page.locator("[id='spec.model.family']").select_option("ppca")
    page.locator("[id='spec.seeds']").fill("7")
    page.locator("[id='spec.model.latent_dim']").fill("3")
    page.locator("[id='spec.model.family']").select_option("vae")
    for kept in ('"latent_dim": 3', '"distribution": "bernoulli"', '"binarize": "threshold"'):
        expect(spec).to_have_value(containing(kept))
    expect(page.locator("[id='spec.seeds']")).to_have_value("7")


def test_what_was_typed_survives_the_end_of_a_sign_in(stranger: Page, lab: BrowsedLab) -> None:
    key = key_of(lab.database, "dora", Role.MEMBER)
    signed_in(stranger, lab.service, key)
    stranger.goto(lab.url("/new?tab=spec"))
    stranger.fill("#name", "half typed")
    with lab.database.transaction() as session:
        user = accounts.find(session, "dora")
        assert user is not None
        accounts.revoke(session, user, key.split("_")[1])
    stranger.locator("#spec").fill('{"model": {')
    stranger.locator("#spec").fill('{"model": {"family": "ppca"}}')
    stranger.wait_for_url("**/sign-in?next=*")
    stranger.fill("#key", key_of(lab.database, "dora", Role.MEMBER))
    stranger.get_by_role("button", name="Sign in").click()
    expect(stranger.locator("#spec")).to_have_value('{"model": {"family": "ppca"}}')
    expect(stranger.locator("#name")).to_have_value("half typed")
    stranger.get_by_role("tab", name="A checkpoint and texts").click()
    expect(stranger.locator("#name")).to_have_value("")  # each way has a name of its own
    stranger.get_by_role("tab", name="A spec").click()
    stranger.get_by_role("button", name="Start over").click()
    expect(stranger.locator("#name")).to_have_value("")


@pytest.mark.parametrize("way", ["data", "spec"])
def test_name_and_submit_stay_in_reach_on_a_phone(page: Page, lab: BrowsedLab, way: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(lab.url(f"/new?tab={way}"))
    for to in ("0", "document.body.scrollHeight"):
        page.evaluate(f"scrollTo(0, {to})")
        expect(page.locator("#name")).to_be_in_viewport(ratio=1)
        expect(page.get_by_role("button", name="Submit")).to_be_in_viewport(ratio=1)

"""The table of rows on the page of an experiment, and the tabs below its result."""

import hashlib
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from service.experiments.models import Artifact
from service.vocabulary import Status
from tests.support.attempts import claim_next, submitted
from tests.support.browser import BrowsedLab
from tests.support.filled_lab import end, succeeded
from tests.support.ppca_spec import ppca_spec

pytestmark = pytest.mark.slow
"""A browser and a lab of its own for one table; the script that reads it has quick tests."""

ROWS = b"""\
row,id,seed,values,log_likelihood,p_value,unusual_columns
0,s0,4,6,-4.5,0.3,
1,"<i>s</i>, 1",4,6,-30.25,1e-09,b +4.2; c -3.1; a +0.1
2,s2,4,5,-9.5,0.02,a -2.9; c +1.1; b +0.2
"""


def test_rows_are_shown_with_ids_and_columns_the_least_usual_first(
    page: Page, lab: BrowsedLab, tmp_path: Path
) -> None:
    fitted = succeeded(lab.database, "fitted for rows")
    (tmp_path / "unusual.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n2,3,4,5,6,8\n0,1,7,3,4,5\n")
    data = lab.api.upload(tmp_path / "unusual.csv")
    model = {"family": "ppca", "latent_dim": 2, "init": "experiment", "experiment": fitted}
    spec = ppca_spec(
        model=model, data={"source": "upload", "dataset": data["id"], "n": 3, "dim": 6}
    )
    submitted(lab.database, spec, name="scored rows", priority=100)
    claim = claim_next(lab.database)
    folder = lab.service.settings.artifacts(claim.experiment_id, 1)
    folder.mkdir(parents=True)
    (folder / "rows.csv").write_bytes(ROWS)
    digest = hashlib.sha256(ROWS).hexdigest()
    kept = {"file": "rows.csv", "media_type": "text/csv", "sha256": digest, "attempt": 1, "seq": 2}
    with lab.database.transaction() as session:
        session.add(Artifact(experiment_id=claim.experiment_id, **kept))
    end(lab.database, claim, Status.SUCCEEDED)
    page.goto(lab.url(f"/experiments/{claim.experiment_id}"))
    table = page.get_by_role("region", name="Table of rows")
    expect(table.locator("thead th")).to_have_text(
        ["Row", "id", "p-value ▲", "Unusual columns", "Log-likelihood", "Values"]
    )
    expect(table.locator("tbody tr").nth(0).locator("td")).to_have_text(
        ["1", "<i>s</i>, 1", "10⁻⁹", "b +4.2; c −3.1; a +0.1", "−30.250", "6"]
    )
    numbers = table.locator("tbody tr td:first-child")
    expect(numbers).to_have_text(["1", "2", "0"])
    table.get_by_role("button", name="Row", exact=True).click()
    expect(numbers).to_have_text(["0", "1", "2"])
    tabs = page.get_by_role("tablist").get_by_role("tab")
    expect(tabs).to_have_text(["Results", "Spec", "What ran where", "What happened"])
    tabs.first.press("ArrowRight")
    expect(page.get_by_role("tab", name="Spec")).to_be_focused()
    page.wait_for_url("**?tab=spec")
    panel = page.get_by_role("tabpanel", name="Spec")
    expect(panel).to_contain_text("upload · unusual.csv · columns a, b, c, d, e, f · rows 3")
    expect(panel).to_contain_text("experiment fitted for rows")
    expect(panel.locator("dl")).not_to_contain_text("max_masks")  # no target error uses it
    page.reload()
    expect(panel).to_be_visible()

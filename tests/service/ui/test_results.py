"""The result that pages show first: after training, with its warnings, and of every family."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from service.records.recording import Batch, record
from service.vocabulary import Status
from tests.support.attempts import claim_next, submitted
from tests.support.browser import BrowsedLab, containing
from tests.support.filled_lab import end
from tests.support.ppca_spec import ppca_spec

pytestmark = pytest.mark.slow
"""A browser and a lab of its own. What the service says first of a run has quick tests, and so have
the scripts that show it."""

TRAINED = ppca_spec(model__init="random", train={"epochs": 60, "curve_at": [0, 60]})
CURVE: Any = [
    ("lml", -56.481, 0.0, {"epoch": 0}), ("mpt", -57.0, 0.5, {"epoch": 0}),
    ("lml", -10.2, 0.0, {}), ("mpt", -10.1, 0.1, {}), ("difference", 0.1, 0.1, {}),
]  # fmt: skip


def ended(
    lab: BrowsedLab,
    name: str,
    spec: dict[str, Any],
    metrics: Any,
    *records: dict[str, Any],
) -> str:
    """The id of an experiment with these metrics and other records."""
    submitted(lab.database, spec, name=name, priority=100)
    return end_next(lab, metrics, *records)


def end_next(lab: BrowsedLab, metrics: Any, *records: dict[str, Any]) -> str:
    claim = claim_next(lab.database)
    batch = Batch()
    all_metrics = [
        {"record": "metric", "name": metric, "value": value, "std_err": std_err,
         "labels": {"seed": 4, **labels}} for metric, value, std_err, labels in metrics
    ]  # fmt: skip
    for seq, one in enumerate([*records, *all_metrics], 1):
        batch.add({"seq": seq, **one})
    with lab.database.transaction() as session:
        record(session, claim, batch, 600.0)
    end(lab.database, claim, Status.SUCCEEDED)
    return claim.experiment_id


def test_a_page_and_the_list_show_the_result_after_training(page: Page, lab: BrowsedLab) -> None:
    warning = {"record": "log", "level": "warning", "message": "the fit has not converged"}
    made = ended(lab, "after training", TRAINED, CURVE, warning)
    page.goto(lab.url(f"/experiments/{made}"))
    result = page.get_by_role("region", name="Result")
    expect(result.locator(".amount")).to_have_text(
        [containing("−10.200 nats"), containing("−10.10 ± 0.10 nats")]
    )
    expect(result).to_contain_text("−56.481 at epoch 0 → −10.200")
    expect(result.locator(".good-text")).to_have_text("they agree: MPT − LML is 0.10 ± 0.10")
    expect(page.get_by_role("region", name="Warnings")).to_contain_text("has not converged")
    metrics = page.get_by_role("region", name="Metrics")
    expect(metrics.get_by_role("row", name="lml").first).to_contain_text("−10.200")
    page.goto(lab.url("/?q=after+training"))
    cell = page.get_by_role("row", name="after training").locator(".result-cell")
    expect(cell).to_have_text("LML −10.200MPT −10.10 ± 0.10")


def test_a_sweep_says_what_its_table_says(page: Page, lab: BrowsedLab) -> None:
    field = "model.latent_dim"
    spec = ppca_spec(model__init="random", data__heldout=0.2)
    made = lab.api.sweep(spec, {field: [1, 2, 3]}, name="an edge", priority=100)
    for value in (-9.0, -8.0, -7.0):
        end_next(lab, [("lml_heldout", value, 0.0, {})])
    notes = made.table_document()["notes"]
    assert notes[-1].startswith("K = 3 is the last value: extend to 5: mpt extend")
    page.goto(lab.url(f"/sweeps/{made.id}"))
    result = page.get_by_role("region", name="Result")
    expect(result).to_contain_text("at K = 3")
    expect(result.get_by_role("listitem")).to_have_text(notes)
    expect(page.locator(".u-legend")).to_contain_text("best: K = 3")
    chart = page.get_by_role("img", name="LML, held out by latent dimensions K")
    expect(chart).to_be_visible()
    page.get_by_role("link", name="Run point 2 with more masks").click()
    expect(page.locator("#spec")).to_have_value(re.compile(r'"per_size": 16\b'))
    page.go_back()
    page.get_by_role("button", name="Extend the range: K = 4 to 5").click()
    points = page.get_by_role("region", name="Points").locator("tbody tr")
    expect(points).to_have_count(5)
    assert [row["fields"] for row in made.table_document()["items"][3:]] == [{field: 4}, {field: 5}]

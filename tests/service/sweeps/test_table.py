"""Tables of sweeps: what they hold, and which are refused."""

from types import ModuleType

import pytest
from fastapi.testclient import TestClient

from service.experiments.models import Metric
from service.records import results
from service.sweeps import store, views
from tests.service.sweeps.test_sweeps import claim_next, finish, rows, sweep
from tests.support.callers import database_of


def finished(api: TestClient) -> None:
    """End the first point with two metrics."""
    database = database_of(api)
    claim = claim_next(database)
    assert claim is not None
    with database.transaction() as session:
        for seq, name in enumerate(("lml", "mpt_score"), 1):
            metric = {"experiment_id": claim.experiment_id, "seq": seq, "name": name}
            session.add(Metric(**metric, labels="{}", value=1.0, std_err=0.1))
    finish(database, claim)


FORMS = ("", "?format=csv", "?format=csv&form=long", "?format=csv&form=pooled")


@pytest.mark.parametrize(
    ("module", "name", "limit", "pointer", "forms"),
    [
        (views, "MAX_TABLE_BYTES", 1, "/path/sweep_id", FORMS),
        (store, "MAX_SPEC_BYTES", 1, "/path/sweep_id", FORMS),
        (results, "MAX_METRICS", 1, "/path/sweep_id", FORMS),
        (views, "MAX_CSV_CHARACTERS", 1, "/path/sweep_id", FORMS[1:3]),
        (views, "MAX_CSV_CELLS", 40, "/query/form", FORMS[1:2]),
    ],
)
def test_a_table_that_would_take_gigabytes_is_refused(
    admin: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    limit: int,
    pointer: str,
    forms: tuple[str, ...],
) -> None:
    """One with large values, many points, or metrics. Where another form is smaller, it is
    answered: in a wide CSV each metric of one point is three empty cells of each other point."""
    made = sweep(admin)
    finished(admin)
    url = made["urls"]["table"]
    assert [admin.get(url + form).status_code for form in FORMS] == [200] * 4
    monkeypatch.setattr(module, name, limit)
    for form in FORMS:
        answer = admin.get(url + form)
        assert answer.status_code == (422 if form in forms else 200), form
        if form in forms:
            assert answer.json()["errors"][0]["pointer"] == pointer


def test_points_with_the_same_experiment_have_its_metrics_once_each(admin: TestClient) -> None:
    """The cache answers equal points with one experiment. Its metrics were read once for each
    point, and then counted so many times at each."""
    database = database_of(admin)
    made = sweep(admin, list=[{"seeds": [4]}])
    one = rows(admin, made["id"])[0]["experiment_id"]
    finish(database, claim_next(database))
    with database.transaction() as session:
        session.add(Metric(experiment_id=one, name="lml", labels='{"seed":4}', seq=1, value=2.0))
    made = sweep(admin, list=[{"seeds": [4]}] * 3)
    table = admin.get(f"/v1/sweeps/{made['id']}/table").json()
    cell = {"value": 2.0, "std_err": None, "count": 1}
    assert [row["metrics"] for row in table["items"]] == [{"lml": cell}] * 3
    assert [(row["points"], row["metrics"]) for row in table["pooled"]] == [(3, {"lml": cell})]
    url, form = f"/v1/sweeps/{made['id']}/table", {"format": "csv", "form": "long"}
    assert len(admin.get(url, params=form).text.splitlines()) == 1 + 3

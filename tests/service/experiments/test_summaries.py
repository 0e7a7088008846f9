"""The results of an experiment: after training, with their titles, for lists and pages."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.db.engine import Database
from service.experiments.models import Experiment, Metric
from service.experiments.summaries import summary
from tests.support.attempts import submitted
from tests.support.lm_specs import BASE
from tests.support.ppca_spec import ppca_spec

TRAINED = ppca_spec(model__init="random", train={"epochs": 60, "curve_at": [0, 20, 60]})


def metric(name: str, value: float | None, std_err: float | None = 0.0, **labels: Any) -> Any:
    """A metric as it is read: the result of seed 4."""
    reason = None if value is not None else "not final"
    text = json.dumps({"seed": 4, **labels}, sort_keys=True)
    return ("id", 1, name, text, value, std_err, reason)


def results(*metrics: Any, spec: Any = TRAINED) -> list[Any]:
    return [row for row in summary(metrics, spec) if row["label"] is not None]


CURVE = [
    metric("lml", -56.481, epoch=0), metric("mpt", -57.0, 0.5, epoch=0),
    metric("lml", -20.0, epoch=20), metric("lml", -10.2, epoch=60),
    metric("lml", -10.2), metric("mpt", -10.1, 0.1), metric("difference", 0.1, 0.1),
]  # fmt: skip


def test_the_result_is_the_value_after_training() -> None:
    lml, mpt = results(*CURVE)
    assert (lml["label"], lml["value"], lml["unit"]) == ("LML", -10.2, "nats")
    assert lml["before"] == {"at": {"epoch": 0}, "value": -56.481, "std_err": 0.0}
    assert mpt["before"] == {"at": {"epoch": 0}, "value": -57.0, "std_err": 0.5}
    assert mpt["agreement"] == {
        "outcome": "agree", "text": "they agree", "value": 0.1, "std_err": 0.1,
    }  # fmt: skip
    titles = [row["title"] for row in summary(CURVE, TRAINED)]
    assert titles == [
        "lml", "mpt", "lml[epoch=0]", "mpt[epoch=0]", "lml[epoch=20]", "lml[epoch=60]",
        "difference",
    ]  # fmt: skip


def test_while_a_run_trains_its_latest_value_is_the_result() -> None:
    (lml, mpt) = results(*CURVE[:3])
    assert (lml["label"], lml["value"]) == ("LML, epoch 20", -20.0)
    assert lml["before"]["value"] == -56.481
    assert (mpt["label"], mpt["before"], mpt["agreement"]) == ("MPT, epoch 0", None, None)


def test_the_end_of_the_training_is_not_before_it() -> None:
    (lml,) = results(metric("lml", -10.2, epoch=60), metric("lml", -10.2))
    assert lml["before"] is None


@pytest.mark.parametrize(
    ("gap", "outcome", "text"),
    [
        (0.19, "agree", "they agree"),
        (-0.21, "unclear", "they differ by 2.1 standard errors"),
        (0.31, "differ", "they differ by 3.1 standard errors"),
    ],
)
def test_a_score_agrees_within_two_errors_of_the_difference(
    gap: float, outcome: str, text: str
) -> None:
    exact = [metric("lml", -60.0), metric("mpt", -60.0 + gap, 0.1)]
    for metrics in (exact, [*exact, metric("difference", gap, 0.1)]):
        found = results(*metrics, spec=ppca_spec())[1]["agreement"]
        assert (found["outcome"], found["text"]) == (outcome, text)
        assert found["value"] == pytest.approx(gap)
    sampled = results(metric("lml", -60.0, 0.3), metric("mpt", -61.0, 0.1))
    assert sampled[1]["agreement"] is None


def test_results_are_those_of_the_model_not_of_its_baseline() -> None:
    found = results(
        metric("lml", -30.0, model="baseline"), metric("lml", -20.0, model="model"),
        metric("lml_heldout", -21.0, model="model"), metric("masks", 3.0),
    )  # fmt: skip
    assert [(row["label"], row["value"]) for row in found] == [
        ("LML", -20.0), ("LML, held out", -21.0),
    ]  # fmt: skip


def test_each_objective_has_results_of_its_own() -> None:
    found = results(
        metric("lml", -24.6, objective="elbo", epoch=0), metric("lml", -24.2, objective="elbo"),
        metric("lml", -24.4, objective="mpt"),
    )  # fmt: skip
    assert [(row["label"], row["value"]) for row in found] == [
        ("LML, trained by elbo", -24.2), ("LML, trained by mpt", -24.4),
    ]  # fmt: skip
    (only,) = results(metric("lml", -24.2, objective="elbo"))
    assert only["label"] == "LML"


def test_a_result_without_a_value_has_its_reason() -> None:
    (lml,) = results(metric("lml", None, None))
    assert (lml["value"], lml["reason"]) == (None, "not final")


def test_an_area_has_its_number_of_tokens_and_a_language_model_its_results() -> None:
    spec = BASE | {"evaluate": {"dimensions": 512}}
    area, pll = results(metric("pll", -9.12), metric("area", -956.7, 3.0), spec=spec)
    assert (area["label"], area["tokens"]) == ("Area under the curve", 512)
    assert area["meaning"] == "masked scores, integrated over rates, for 512 tokens: nats"
    assert (pll["label"], pll["tokens"]) == ("Pseudo-log-likelihood", None)
    (accuracy,) = results(metric("accuracy", 0.75, 0.1), spec=spec)
    assert (accuracy["label"], accuracy["unit"]) == ("Accuracy", None)


def test_means_over_seeds_are_those_of_tables() -> None:
    rows = [
        ("id", 1, "mpt", json.dumps({"seed": i}), v, 0.1, None)
        for i, v in enumerate((1.0, 2.0, 6.0))
    ]
    (mpt,) = summary(rows, ppca_spec())  # type: ignore[arg-type]
    assert (mpt["value"], mpt["count"]) == (3.0, 3)
    assert mpt["std_err"] == pytest.approx(1.5275252316519468)
    assert mpt["covers"] == "the variation between seeds: training, masks, samples"


def stored(database: Database, *metrics: Any, **beside: Any) -> str:
    spec = beside.pop("spec", TRAINED)
    experiment_id = submitted(database, spec, **beside)
    with database.transaction() as session:
        for seq, (_, _, name, labels, value, std_err, reason) in enumerate(metrics, 1):
            session.add(Metric(experiment_id=experiment_id, seq=seq, name=name, value=value,
                               labels=labels.replace(": ", ":").replace(", ", ","),
                               std_err=std_err, reason=reason))  # fmt: skip
        session.get_one(Experiment, experiment_id).last_seq = len(metrics)
    return experiment_id


def test_all_answers_have_the_same_result(api: TestClient, database: Database) -> None:
    experiment_id = stored(database, *CURVE)
    single = api.get(f"/v1/experiments/{experiment_id}").json()
    (many,) = api.post("/v1/experiments:batchGet", json={"ids": [experiment_id]}).json()["items"]
    (listed,) = api.get("/v1/experiments?summary=true&metrics=difference").json()["items"]
    assert single["summary"] == many["summary"] == summary(CURVE, single["spec"])
    finals = [row | {"before": None} for row in single["summary"] if "epoch" not in row["title"]]
    assert listed["summary"] == finals
    assert [row["value"] for row in finals] == [-10.2, -10.1, 0.1]
    (plain,) = api.get("/v1/experiments").json()["items"]
    assert plain["summary"] is None
    assert [row["title"] for row in listed["summary"]] == ["lml", "mpt", "difference"]
    assert [one["name"] for one in listed["metrics"]] == ["difference"]


TITLES = [
    ("ppca · K 2 · drawn 50 × 6", ppca_spec()),
    ("masked_lm · tiny · text", BASE),
]


@pytest.mark.parametrize(("title", "spec"), TITLES, ids=[title for title, _ in TITLES])
def test_an_experiment_without_a_name_has_its_spec_in_short(
    api: TestClient, database: Database, title: str, spec: Any
) -> None:
    experiment_id = submitted(database, spec)
    assert api.get(f"/v1/experiments/{experiment_id}").json()["title"] == title
    assert api.get("/v1/experiments").json()["items"][0]["title"] == title
    assert api.get("/v1/queue").json()["items"][0]["title"] == title
    api.patch(f"/v1/experiments/{experiment_id}", json={"name": "mine"})
    assert api.get("/v1/experiments").json()["items"][0]["title"] == "mine"


def test_the_title_of_a_large_spec_is_its_family_in_a_list(
    api: TestClient, database: Database
) -> None:
    lines = ["CCO" * 100] * 40
    experiment_id = submitted(database, BASE | {"data": {"source": "text", "lines": lines}})
    assert api.get("/v1/experiments").json()["items"][0]["title"] == "masked_lm"
    single = api.get(f"/v1/experiments/{experiment_id}").json()["title"]
    assert single == "masked_lm · tiny · text"


def test_a_point_is_named_by_its_sweep_and_swept_fields(api: TestClient) -> None:
    grid = {"model.latent_dim": [3], "seeds": [[4, 44]], "data.noise_precision": [5.0]}
    spec = ppca_spec(model__init="random")
    for name, title in (("mine", "mine"), (None, "sweep"), ("n" * 30, "n" * 24 + "…")):
        made = api.post(
            "/v1/sweeps", json={"spec": spec, "grid": grid, "name": name, "cache": False}
        )
        assert made.status_code == 202, made.text
        newest = api.get("/v1/experiments").json()["items"][0]
        assert newest["title"] == f"{title}: latent_dim 3, seeds [4,44], noise_precision 5"
        expected = name or f"sweep of latent_dim, seeds, noise_precision · {made.json()['id'][-6:]}"
        assert made.json()["title"] == expected


def test_lists_are_filtered_and_ordered_by_the_final_value(
    api: TestClient, database: Database
) -> None:
    """A model that was the worst before its training was the first of all."""
    low = stored(database, metric("lml", -99.0, epoch=0), metric("lml", -5.0), name="low at first")
    high = stored(database, metric("lml", -1.0, epoch=0), metric("lml", -9.0), name="high")

    def ids(**query: str) -> list[str]:
        items = api.get("/v1/experiments", params=query).json()["items"]
        return [one["id"] for one in items]

    assert ids(order_by="metrics.lml asc") == [high, low]
    assert ids(order_by="metrics.lml desc") == [low, high]
    assert ids(filter="metrics.lml > -6") == [low]
    assert ids(filter="metrics.lml{epoch=0} > -6") == [high]
    assert ids(order_by="metrics.lml{epoch=0} desc") == [high, low]

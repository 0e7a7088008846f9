"""Points of sweeps: their specs, and refusals."""

import tracemalloc
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.sweeps.expansion import MAX_POINTS, Points
from service.sweeps.models import Sweep
from service.vocabulary import Status
from tests.service.sweeps.test_sweeps import GRID, SPEC, refused, rows, sweep
from tests.support.callers import database_of
from tests.support.ppca_spec import ppca_spec


def test_a_grid_is_all_combinations_the_last_varying_fastest(admin: TestClient) -> None:
    made = sweep(admin, name="dims", tags=["a"], priority=3, visibility="lab")
    assert (made["points"], made["status"], made["terminal"]) == (6, "queued", False)
    assert made["counts"] == dict.fromkeys(Status, 0) | {"queued": 6}
    assert made["progress"] == {"done": 0, "total": 600, "unit": "hundredths of a run"}
    found = rows(admin, made["id"])
    assert [row["point"] for row in found] == [*range(6)]
    expected = [{"model.latent_dim": k, "seeds": s} for k in (1, 2, 3) for s in ([4], [44])]
    assert [row["fields"] for row in found] == expected
    one = admin.get(f"/v1/experiments/{found[3]['experiment_id']}").json()
    assert one["spec"]["model"]["latent_dim"] == 2
    assert one["spec"]["seeds"] == [44]
    assert (one["sweep"], one["tags"], one["priority"]) == (made["id"], ["a"], 3)
    assert one["visibility"] == "lab"


def test_a_list_gives_each_point_by_itself(admin: TestClient) -> None:
    listed = [{"model.latent_dim": 1}, {"seeds": [1, 2], "train": None}]
    made = sweep(admin, list=listed)
    assert made["fields"] == ["model.latent_dim", "seeds", "train"]
    found = [row["fields"] for row in rows(admin, made["id"])]
    assert found == [
        {"model.latent_dim": 1, "seeds": [4], "train": None},
        {"model.latent_dim": 2, "seeds": [1, 2], "train": None},
    ]


def drawn(**draws: Any) -> list[dict[str, Any]]:
    return [dict(one.values) for one in Points.model_validate({"random": draws}).points()]


def test_random_points_use_the_given_values_and_seed() -> None:
    fields = {
        "a": [1, "x"],
        "b": {"low": 1, "high": 3},
        "c": {"low": 0.001, "high": 1.0, "scale": "log"},
        "d": {"low": 1, "high": 1000, "scale": "log"},
    }
    found = drawn(n=2000, seed=5, fields=fields)
    assert found == drawn(n=2000, seed=5, fields=fields)
    assert found != drawn(n=2000, seed=6, fields=fields)
    assert {one["a"] for one in found} == {1, "x"}
    assert {one["b"] for one in found} == {1, 2, 3}
    assert all(0.001 <= one["c"] <= 1.0 for one in found)
    # A third of the range in logarithms holds a third of the draws: 5 standard errors.
    error = 5 * (2000 * 2 / 9) ** 0.5
    assert abs(sum(one["c"] < 0.01 for one in found) - 2000 / 3) < error
    assert abs(sum(one["b"] == 2 for one in found) - 2000 / 3) < error
    assert {one["d"] for one in found} <= {*range(1, 1001)}
    assert all(isinstance(one["d"], int) for one in found)


def test_a_bad_point_refuses_the_sweep_and_is_named(shared_api: TestClient) -> None:
    grid = {"seeds": [[4], [44]], "model.latent_dim": [1, 9, 2]}
    ((pointer, detail),) = refused(shared_api, spec=SPEC, grid=grid)
    assert pointer == "/grid/model.latent_dim/1"
    assert detail.startswith("point 1 (seeds=[4], model.latent_dim=9): at most 5")
    listed = [{"seeds": [4]}, {"model.init": "maximum", "seeds": [4]}]
    ((pointer, detail),) = refused(shared_api, spec=SPEC, list=listed)
    assert pointer == "/list/1/model.init"
    assert "'generator'" in detail
    draws = {"n": 3, "fields": {"model.latent_dim": {"low": 6, "high": 9}}}
    ((pointer, detail),) = refused(shared_api, spec=SPEC, random=draws)
    assert pointer == "/random/fields/model.latent_dim"
    assert detail.startswith("point 0 (model.latent_dim=")


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ({"grid": {"model.latent_dim": [*range(1, 21)], "seeds": [[1], [2]]}},
         [("/grid/model.latent_dim", "not 6 to 20")]),
        ({"grid": {"model.latent_dim": ["a", 2, 7, None]}},
         [("/grid/model.latent_dim", "not 'a', null"), ("/grid/model.latent_dim/2", "not 7")]),
        ({"grid": {"model.latent_dim": [6 + 2 * i for i in range(13)]}},
         [("/grid/model.latent_dim", "not 6, 8, 10, 12, 14, 16, 18, 20, 22, 24 and 3 more")]),
        ({"list": [{"model.latent_dim": k} for k in range(4, 9)]},
         [("/list/2/model.latent_dim", "not 6; and 2 more like it")]),
        ({"grid": {"model": [{"family": "x"}, {"family": "y"}]}},
         [("/grid/model/0/family", "; and 1 more like it")]),
        ({"grid": {"seeds": [1, "a"], "data.heldout": ["20%", "0,1"]}},
         [("/grid/data.heldout", "not '20%', '0,1'"), ("/grid/seeds", "not 1, 'a'")]),
    ],
)  # fmt: skip
def test_many_values_with_one_problem_are_told_once(
    shared_api: TestClient, points: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    for (pointer, detail), (where, end) in zip(
        refused(shared_api, spec=SPEC, **points), expected, strict=True
    ):
        assert (pointer, detail[-len(end) :]) == (where, end)


def test_errors_outside_the_swept_fields_point_to_the_spec(shared_api: TestClient) -> None:
    """A contradiction between a swept field and another names the other, and the point."""
    generator = ppca_spec()
    ((pointer, detail),) = refused(shared_api, spec=generator, grid={"data.latent_dim": [2, 3]})
    assert pointer == "/spec/model/latent_dim"
    assert detail.startswith("point 1 (data.latent_dim=3): init generator takes")


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ({}, "", "give exactly one of grid, list and random"),
        ({"grid": GRID, "list": [{}]}, "", "give exactly one of grid, list and random"),
        ({"grid": {}}, "/grid", "at least 1 item"),
        ({"grid": {"Seeds": [1]}}, "/grid/Seeds", "a path into the spec"),
        ({"grid": {"seeds": []}}, "/grid/seeds", "at least 1 item"),
        ({"grid": {"seeds": [[i] for i in range(101)], "model.latent_dim": [1] * 100}},
         "/grid", f"at most {MAX_POINTS} points, not 10100"),
        ({"list": [{"model.a": 1}, {"seeds": [1]}, {"model.b": 1}, {"model": {}}]},
         "/list", "model.b lies within model"),
        ({"list": [{f"data.f{i}": 1} for i in range(101)]}, "/list", "at most 100 different"),
        ({"grid": {"a" * 201: [1]}}, f"/grid/{'a' * 201}", "at most 200 characters"),
        ({"grid": {"seeds.first": [1]}}, "/spec/seeds", "seeds.first cannot be set"),
        ({"list": [{"model.size": 1}]}, "/list/0/model.size", "point 0 (model.size=1): unknown"),
        ({"random": {"n": 1, "fields": {"seeds": {"low": 2, "high": 1}}}},
         "/random/fields/seeds/high", "above low, 2"),
        ({"grid": GRID, "after": ["0" * 32]}, "/after/0", "the id of an experiment"),
        ({"grid": GRID, "concurrency": 0}, "/concurrency", "greater than or equal to 1"),
    ],
)  # fmt: skip
def test_invalid_sweeps_are_refused(
    shared_api: TestClient, body: dict[str, Any], pointer: str, detail: str
) -> None:
    found = refused(shared_api, spec=SPEC, **body)
    assert any(one[0] == pointer and detail in one[1] for one in found), found


def test_an_unknown_field_of_a_grid_is_told_once(shared_api: TestClient) -> None:
    """With the place of the field that was meant."""
    ((pointer, detail),) = refused(shared_api, spec=SPEC, grid={"latent_dim": [2, 3, 4]})
    assert pointer == "/grid/latent_dim"
    assert detail.endswith("did you mean model.latent_dim or data.latent_dim?")
    ((pointer, _),) = refused(shared_api, spec=SPEC, grid={"model.latent_dim": [0]})
    assert pointer == "/grid/model.latent_dim/0"


def test_references_of_points_are_checked(shared_api: TestClient) -> None:
    upload = {"source": "upload", "dataset": "a" * 32, "n": 9, "dim": 7}
    found = refused(shared_api, spec=SPEC, grid={"data": [SPEC["data"], upload]})
    assert [one[0] for one in found] == ["/grid/data/1/dataset"]


def test_all_points_together_set_at_most_a_hundred_fields(admin: TestClient) -> None:
    made = sweep(admin)
    with database_of(admin).transaction() as session:
        fields = [*made["fields"], *(f"data.f{i}" for i in range(97))]
        session.execute(update(Sweep).values(fields=fields))
    added = admin.post(made["urls"]["points"], json={"list": [{"data.n": 20}]})
    assert added.status_code == 202
    refusal = admin.post(made["urls"]["points"], json={"list": [{"data.seed": 1}]})
    assert "at most 100 different fields" in refusal.json()["detail"]


def test_points_of_a_grid_make_their_pointers_when_they_are_needed() -> None:
    """A short request may have 10,000 points of 100 fields with long paths: 300 MB of pointers."""
    grid = {f"f{i:03}" + "a" * 190: [0] for i in range(90)} | {"seeds": [[i] for i in range(1000)]}
    wanted = Points.model_validate({"grid": grid})
    tracemalloc.start()
    points = list(wanted.points())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12e6
    last = points[-1]
    assert last.pointers["seeds"] == "/grid/seeds/999"
    assert list(last.pointers) == list(grid)
    assert last.places["/spec/seeds"] == "/grid/seeds/999"

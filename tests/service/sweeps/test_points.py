"""Points of sweeps: their specs, and refusals."""

import tracemalloc
from json import JSONEncoder
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from mptcore.specs import Problem
from service.sweeps.expansion import MAX_POINTS, Point, Points, in_request
from service.sweeps.models import Sweep
from service.vocabulary import Status
from tests.service.accounts.test_users import admin, database_of, place, processes
from tests.service.sweeps.test_sweeps import GRID, SPEC, refused, rows, sweep
from tests.support.ppca_spec import ppca_spec

__all__ = ["admin", "place", "processes"]  # fixtures


def test_a_grid_is_all_combinations_the_last_varying_fastest(admin: TestClient) -> None:
    made = sweep(admin, name="dims", tags=["a"], priority=3, visibility="lab")
    assert (made["points"], made["status"], made["terminal"]) == (6, "queued", False)
    assert made["counts"] == dict.fromkeys(Status, 0) | {"queued": 6}
    found = rows(admin, made["id"])
    assert [row["point"] for row in found] == [*range(6)]
    expected = [{"model.latent_dim": k, "seeds": s} for k in (1, 2, 3) for s in ([4], [44])]
    assert [row["fields"] for row in found] == expected
    one = admin.get(f"/v1/experiments/{found[3]['experiment_id']}").json()
    assert one["spec"]["model"]["latent_dim"] == 2
    assert one["spec"]["seeds"] == [44]
    assert (one["sweep"], one["tags"], one["priority"]) == (made["id"], ["a"], 3)
    assert one["visibility"] == "lab"


def test_a_large_value_is_shortened_without_writing_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error names the values of its point, which may have a million numbers."""

    def dumps(value: object) -> str:
        raise AssertionError("all of the value is written")

    monkeypatch.setattr("service.sweeps.expansion.json.dumps", dumps)
    point = Point({"seeds": [1] * 1000, "name": "a" * 50, "cache": True}, {})
    assert point.text == f'seeds=[{"1, " * 12}..., name="{"a" * 36}..., cache=true'


def test_a_point_is_described_once_for_all_of_its_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sweep may have 100 wrong points of 100 fields with 100 problems each."""
    written: list[object] = []

    def encoded(self: JSONEncoder, value: object) -> list[str]:
        written.append(value)
        return [str(value)]

    monkeypatch.setattr(JSONEncoder, "iterencode", encoded)
    point = Point({"model.init": "a" * 1000, "seeds": [4]}, {"model.init": "/grid/model.init/0"})
    problems = [Problem(f"/spec/wrong_{i}", "unknown") for i in range(100)]
    problems += [Problem("/spec/model/init/0", "unknown"), Problem("/spec/model", "unknown")]
    found = [in_request(0, point, problem).pointer for problem in problems]
    assert found[-3:] == ["/spec/wrong_99", "/grid/model.init/0/0", "/spec/model"]
    assert written == ["a" * 40, [4]]


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


def test_the_bytes_of_random_points_are_those_of_the_longest_values() -> None:
    """A number of a range has at most some 20 digits."""
    draws = {
        "n": 3,
        "fields": {"seeds": [[1], [1, 22], []], "model.latent_dim": {"low": 1, "high": 9}},
    }
    points = Points.model_validate({"random": draws})
    assert points.estimated_bytes({"a": 1}) == 3 * (len('{"a": 1}') + len("[1, 22]") + 20)


def test_a_bad_point_refuses_the_sweep_and_is_named(admin: TestClient) -> None:
    grid = {"seeds": [[4], [44]], "model.latent_dim": [1, 9, 2]}
    assert refused(admin, spec=SPEC, grid=grid) == [
        (
            "/grid/model.latent_dim/1",
            "point 1 (seeds=[4], model.latent_dim=9): at most 5, fewer than the data's 6 "
            "dimensions, not 9",
        )
    ]
    listed = [{"seeds": [4]}, {"model.init": "maximum", "seeds": [4]}]
    (found,) = refused(admin, spec=SPEC, list=listed)
    assert found[0] == "/list/1/model.init"
    assert found[1].startswith("point 1 (model.init=\"maximum\", seeds=[4]): one of 'generator'")
    draws = {"n": 3, "fields": {"model.latent_dim": {"low": 6, "high": 9}}}
    ((pointer, detail),) = refused(admin, spec=SPEC, random=draws)
    assert pointer == "/random/fields/model.latent_dim"
    assert detail.startswith("point 0 (model.latent_dim=")


TOO_MANY = "at most 5, fewer than the data's 6 dimensions"
FAMILIES = "one of 'ppca', 'factor_analysis', 'linear_vae', 'vae', 'masked_lm'"


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ({"grid": {"model.latent_dim": [*range(1, 21)], "seeds": [[1], [2]]}},
         [("/grid/model.latent_dim", f"{TOO_MANY}, not 6 to 20")]),
        ({"grid": {"model.latent_dim": [6, 1, 9]}},
         [("/grid/model.latent_dim", f"{TOO_MANY}, not 6, 9")]),
        ({"grid": {"model.latent_dim": ["a", 2, 7, None]}},
         [("/grid/model.latent_dim", "an integer, not 'a', null"),
          ("/grid/model.latent_dim/2", f"point 2 (model.latent_dim=7): {TOO_MANY}, not 7")]),
        ({"grid": {"model.latent_dim": [6 + 2 * i for i in range(13)]}},
         [("/grid/model.latent_dim",
           f"{TOO_MANY}, not 6, 8, 10, 12, 14, 16, 18, 20, 22, 24 and 3 more")]),
        ({"list": [{"model.latent_dim": k} for k in range(4, 9)]},
         [("/list/2/model.latent_dim",
           f"point 2 (model.latent_dim=6): {TOO_MANY}, not 6; and 2 more like it")]),
        ({"grid": {"model": [{"family": "x"}, {"family": "y"}]}},
         [("/grid/model/0/family",
           f'point 0 (model={{"family": "x"}}): {FAMILIES}; and 1 more like it')]),
        ({"grid": {"seeds": [1, "a"], "data.heldout": ["20%", "0,1"]}},
         [("/grid/data.heldout", "a number, not '20%', '0,1'"),
          ("/grid/seeds", "a list, in brackets: […], not 1, 'a'")]),
        ({"grid": {"model.family": ["x", "y"]}}, [("/grid/model.family", f"2 values: {FAMILIES}")]),
    ],
)  # fmt: skip
def test_many_values_with_one_problem_are_told_once(
    admin: TestClient, points: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert refused(admin, spec=SPEC, **points) == expected


def test_errors_outside_the_swept_fields_point_to_the_spec(admin: TestClient) -> None:
    """A contradiction between a swept field and another names the other, and the point."""
    generator = ppca_spec()
    ((pointer, detail),) = refused(admin, spec=generator, grid={"data.latent_dim": [2, 3]})
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
        (
            {"grid": {"seeds": [[i] for i in range(101)], "model.latent_dim": [1] * 100}},
            "/grid",
            f"at most {MAX_POINTS} points, not 10100",
        ),
        (
            {"grid": {"model": [{}], "model.latent_dim": [1]}},
            "/grid",
            "model.latent_dim lies within model, which is swept itself",
        ),
        (
            {"list": [{"model.a": 1}, {"seeds": [1]}, {"model.b": 1}, {"model": {}}]},
            "/list",
            "model.b lies within model, which is swept itself",
        ),
        (
            {"list": [{f"data.f{i}": 1} for i in range(101)]},
            "/list",
            "a sweep sets at most 100 different fields, not 101",
        ),
        ({"grid": {"a" * 201: [1]}}, f"/grid/{'a' * 201}", "at most 200 characters"),
        (
            {"grid": {"seeds.first": [1]}},
            "/spec/seeds",
            "not an object, so seeds.first cannot be set",
        ),
        ({"list": [{"model.size": 1}]}, "/list/0/model.size", "point 0 (model.size=1): unknown"),
        (
            {"random": {"n": 1, "fields": {"seeds": {"low": 2, "high": 1}}}},
            "/random/fields/seeds/high",
            "above low, 2, not 1",
        ),
        ({"grid": GRID, "after": ["0" * 32]}, "/after/0", "the id of an experiment"),
        ({"grid": GRID, "concurrency": 0}, "/concurrency", "greater than or equal to 1"),
    ],
)
def test_invalid_sweeps_are_refused(
    admin: TestClient, body: dict[str, Any], pointer: str, detail: str
) -> None:
    found = refused(admin, spec=SPEC, **body)
    assert any(one[0] == pointer and detail in one[1] for one in found), found


def test_an_unknown_field_of_a_grid_is_told_once(admin: TestClient) -> None:
    """With the place of the field that was meant."""
    top = "baseline, compute, data, evaluate, model, seeds, train"
    told = f"unknown field; allowed here: {top}; did you mean model.latent_dim or data.latent_dim?"
    found = refused(admin, spec=SPEC, grid={"latent_dim": [2, 3, 4]})
    assert found == [("/grid/latent_dim", told)]
    (values,) = refused(admin, spec=SPEC, grid={"model.latent_dim": [0]})
    assert values[0] == "/grid/model.latent_dim/0"


def test_references_of_points_are_checked(admin: TestClient) -> None:
    upload = {"source": "upload", "dataset": "a" * 32, "n": 9, "dim": 7}
    found = refused(admin, spec=SPEC, grid={"data": [SPEC["data"], upload]})
    assert [one[0] for one in found] == ["/grid/data/1/dataset"]


def test_all_points_together_set_at_most_a_hundred_fields(admin: TestClient) -> None:
    wide = [{f"data.f{i}": 1} for i in range(100)]
    assert len(Points.model_validate({"list": wide}).fields()) == 100
    made = sweep(admin)
    with database_of(admin).transaction() as session:
        fields = [*made["fields"], *(f"data.f{i}" for i in range(97))]
        session.execute(update(Sweep).values(fields=fields))
    added = admin.post(made["urls"]["points"], json={"list": [{"data.n": 20}]})
    assert added.status_code == 202
    refusal = admin.post(made["urls"]["points"], json={"list": [{"data.seed": 1}]})
    assert refusal.json()["errors"] == [
        {"pointer": "", "detail": "a sweep sets at most 100 different fields, not 101"}
    ]


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

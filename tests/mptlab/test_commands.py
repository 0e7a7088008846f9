"""Commands with a recording client: calls, output and exit statuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from mptlab.errors import Refused
from mptlab.texts import Texts
from tests.support.recording import ID, Recording, Typed, one_line


def listed(*experiments: dict[str, Any], sweeps: Any = ()) -> Recording:
    """Return a client with these experiments and sweeps."""
    return Recording(
        experiments=lambda **_: iter(experiments),
        sweeps=lambda **_: iter(sweeps),
        presets=[{"name": "table1"}],
        logs=[],
    )


OLDER = {"id": "f" * 32, "name": "k", "status": "failed", "created_at": "2026-01-02T03:04:05Z"}
NEWER = {**OLDER, "id": "e" * 32, "created_at": "2026-01-02T03:05:05Z"}


@pytest.mark.parametrize(
    ("command", "word", "advice"),
    [
        ("show", "mimes", "no experiment mimes"),
        ("show", "table1", "it is a preset, mpt reproduce table1"),
        ("show", "mine", "it is a sweep; mpt table mine"),
        ("table", "mime", "no sweep mime: did you mean mine"),
    ],
)
def test_an_unknown_name_gets_advice(typed: Typed, command: str, word: str, advice: str) -> None:
    with pytest.raises(Refused, match=advice) as refused:
        typed(listed(sweeps=[{**OLDER, "name": "mine"}]), command, word)
    assert refused.value.reason == "not_found"


def test_only_commands_that_read_take_the_newest_of_a_name(typed: Typed) -> None:
    twins = listed(OLDER, NEWER)
    code, _, error = typed(twins, "logs", "k")
    assert (code, twins.calls[-1][:2]) == (0, ("logs", NEWER["id"]))
    assert f"the newest is used, {NEWER['id']} (2026-01-02 03:05), not {OLDER['id']}" in error
    code, shown, error = typed(twins, "cancel", "k")
    assert (code, shown) == (2, "")
    assert NEWER["id"] in error
    assert OLDER["id"] in error
    same_beginning = listed(*({**NEWER, "id": "e" * 31 + last} for last in "12"))
    assert typed(same_beginning, "logs", "e")[0] == 2


def test_matching_experiments_are_cancelled(typed: Typed) -> None:
    client = Recording(cancel_matching={"cancelled": 3, "ending": 1})
    told = "3 cancelled, 1 running will end soon\n"
    assert typed(client, "cancel", "--tag", "a", "--status", "queued") == (0, told, "")
    assert typed(client, "cancel", "--user", "ann", "--filter", "x > 1")[0] == 0
    assert client.calls == [
        ("cancel_matching", {"tag": ["a"], "status": ["queued"], "whose": "mine"}),
        ("cancel_matching", {"owner": "ann", "filter": "x > 1", "whose": "all"}),
    ]
    for words in (["cancel"], ["cancel", ID, "--tag", "a"], ["cancel", "--filter", ""]):
        assert typed(client, *words)[0] == 2
    assert json.loads(typed(client, "cancel", "--tag", "a", "--json")[1])["ending"] == 1
    assert len(client.calls) == 3


LONG_TITLE = "[red]mine\x1b" + "x" * 100
"""A text of a user that neither controls the terminal nor is folded where a program reads it."""


def test_a_list_sends_the_typed_filters_and_prints_each_result(typed: Typed) -> None:
    run = {
        "id": ID, "status": "succeeded", "owner": "me", "title": LONG_TITLE,
        "created_at": "2026-01-31T12:34:56.789Z",
        "summary": [{"title": "mpt", "label": "MPT", "value": -1.0, "std_err": 0.12,
                     "tokens": None}],
    }  # fmt: skip
    client = Recording(experiments=lambda **_: iter([run, {**run, "id": "second"}]))
    words = "list --name a --tag b --status c --where d --order-by e --lab --limit 1"
    code, shown, _ = typed(client, *words.split())
    filters = {"name": "a", "tag": ["b"], "status": ["c"], "filter": "d", "order_by": "e"}
    query = {"limit": 1, "summary": True, **filters, "whose": "lab"}
    assert (code, client.calls) == (0, [("experiments", query)])
    (row,) = (one_line(line) for line in shown.splitlines() if ID in line)
    shown_title = LONG_TITLE.replace("\x1b", "\ufffd")
    assert row == f"{ID} {shown_title} succeeded me mpt -1.00 ± 0.12 2026-01-31 12:34"
    assert "second" not in shown


def test_lists_of_what_is_shared_name_the_owner_and_the_project(typed: Typed) -> None:
    run = {
        "id": ID, "status": "queued", "owner": "ann", "project": "vision", "title": "mine",
        "created_at": "2026-01-31T12:34:56.789Z", "summary": [],
    }  # fmt: skip
    for option, whose, is_named in (("--projects", "project", True), ("--lab", "lab", False)):
        client = Recording(folded=lambda **_: iter([(run, {})]))
        code, shown, _ = typed(client, "list", option)
        assert code == 0
        assert client.calls == [("folded", {"limit": 20, "summary": True, "whose": whose})]
        assert ("vision" in shown) == is_named
        assert "ann" in shown
    shown = typed(Recording(folded=lambda **_: iter([(run, {})])), "list")[1]
    assert "vision" not in shown
    assert typed(Recording(), "list", "--lab", "--projects")[0] == 2


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["share", ID, "--project"], ("change", ID, {"visibility": "project"})),
        (["share", ID], ("change", ID, {"visibility": "lab"})),
        (["submit", "-", "--project", "vision"], ("submit", {}, {"project": "vision"})),
        (["presets", "run", "table1", "--project", "vision"],
         ("run_preset", "table1", {"project": "vision"})),
    ],
)  # fmt: skip
def test_projects_are_named_in_commands(
    typed: Typed, words: list[str], called: tuple[Any, ...]
) -> None:
    changed = {"id": ID, "name": "a", "visibility": "project"}
    client = Recording(change=changed, run_preset=[])
    assert typed(client, *words, text="{}")[0] == 0
    assert called in client.calls


def test_uploads_and_scores_are_put_into_a_project(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    client = Recording(score=Texts([{"row": 0, "pll": -1.5}], ["row", "pll"], ID))
    in_project = ("--project", "vision")
    assert typed(client, "upload", str(file), *in_project)[0] == 0
    assert typed(client, "score", "a", "--model", "m", *in_project)[0] == 0
    (uploaded, scored) = (call[-1]["project"] for call in client.calls)
    assert (uploaded, scored) == ("vision", "vision")


def test_a_submission_sends_the_typed_fields(typed: Typed, tmp_path: Path) -> None:
    client = Recording(submit={"id": ID, "status": "queued"})
    file = tmp_path / "a.yaml"
    file.write_text("data: {n: 4}")
    words = ("--name", "a", "--tag", "b", "--share", "--no-cache")
    assert typed(client, "submit", str(file), "--set", "data.n=5", *words) == (0, f"{ID}\n", "")
    code, shown, error = typed(client, "submit", "-", "--json", text='{"data": {"n": 5}}')
    assert (code, json.loads(shown), error) == (0, {"id": ID, "status": "queued"}, "")
    options = {"name": "a", "tags": ["b"], "visibility": "lab", "cache": False}
    spec = {"data": {"n": 5}}
    assert client.calls == [("submit", spec, options), ("submit", spec)]
    code, _, error = typed(client, "submit", "-", "--set", "data.n", text="{}")
    assert (code, "FIELD=VALUE" in error) == (2, True)


class _Swept:
    id = "s1"

    def get(self) -> dict[str, str]:
        return {"id": "s1", "status": "running"}


def swept(*_: Any, **__: Any) -> _Swept:
    return _Swept()


def test_a_sweep_sends_each_field(typed: Typed) -> None:
    client = Recording(sweep=swept)
    over = ("--over", "a.b=1..2", "--over", "c=x", "--concurrency", "3", "--tag", "t")
    assert typed(client, "sweep", "-", *over, text="{}") == (0, "s1\n", "")
    grid = {"a.b": [1, 2], "c": ["x"]}
    assert client.calls == [("sweep", {}, grid, {"tags": ["t"], "concurrency": 3})]
    code, shown, _ = typed(client, "sweep", "-", "--over", "c=x", "--json", text="{}")
    assert (code, json.loads(shown)["status"]) == (0, "running")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("a=-1..1", [-1, 0, 1]), ("a=3..3", [3]), ("a=1,2.5,auto", [1, 2.5, "auto"]),
        ("a=[1,2]", [1, 2]), ("a=[1],[2]", [[1], [2]]), ('a=["a",1]', ["a", 1]),
        ("a=x=1,true", ["x=1", True]), ("seeds=1..3", [[1], [2], [3]]),
        ("seeds=[1],[2,3]", [[1], [2, 3]]), ("a=0..9999", [*range(10_000)]),
    ],
)  # fmt: skip
def test_values_of_a_sweep(typed: Typed, field: str, values: list[Any]) -> None:
    client = Recording(sweep=swept)
    assert typed(client, "sweep", "-", "--over", field, text="{}")[0] == 0
    assert client.calls == [("sweep", {}, {field.partition("=")[0]: values})]


@pytest.mark.parametrize("values", ["0..10000", "[1,", "3..2", "2-5"])
def test_other_values_of_a_sweep_are_refused(typed: Typed, values: str) -> None:
    client = Recording()
    assert typed(client, "sweep", "-", "--over", f"a={values}", text="{}")[0] == 2
    assert client.calls == []


def test_few_scores_are_printed_beside_their_file(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    for count, is_printed in ((3, True), (100, False)):
        rows = [{"row": i, "pll": -1.5} for i in range(count)]
        client = Recording(score=Texts(rows, ["row", "pll"], ID))
        code, shown, error = typed(client, "score", "a", "--model", "m", "--csv", str(file))
        assert (code, error) == (0, f"{ID}\n")
        assert ("pll" in shown) == is_printed
        assert len(file.read_text().splitlines()) == count + 1


def test_validation_prints_the_cost_of_a_spec(typed: Typed) -> None:
    cost = {"masks": 24, "points": 6, "memory_bytes": 3 * 2**20, "queue_reason": "a worker",
            "runtime": {"median_s": 12.4}, "cached_from": None}  # fmt: skip
    code, shown, _ = typed(Recording(validate=cost), "validate", "-", text="{}")
    assert code == 0
    lines = [one_line(line) for line in shown.splitlines()]
    assert {"masks 24", "points 6", "memory 3 MiB", "runtime about 12 s"} <= {*lines}
    unknown = Recording(validate={**cost, "runtime": None})
    assert "runtime unknown" in one_line(typed(unknown, "validate", "-", text="{}")[1])


@pytest.mark.parametrize(
    ("verdict", "missing", "code"),
    [("agrees", None, 0), ("differs", None, 3), ("incomplete", "a curve", 3)],
)
def test_a_verdict_is_a_table_and_an_exit_status(
    typed: Typed, verdict: str, missing: str | None, code: int
) -> None:
    row = {"what": "rise", "published": 1.0, "measured": 2.5, "half_width": 0.25, "low": 0.5,
           "high": None, "outcome": "agrees", "power": 0.97}  # fmt: skip
    runs = [{"name": "table1", "runs": [{"id": "a"}, None, {"id": "b"}]}]
    answer = {"verdict": verdict, "comparisons": [row], "missing": missing}
    client = Recording(verdict=answer, preset_runs=runs)
    status, shown, _ = typed(client, "verdict", "table1", ID, ID)
    assert (status, client.calls) == (code, [("verdict", "table1", [ID, ID])])
    lines = [one_line(line) for line in shown.splitlines()]
    assert "what published measured agrees from to outcome power" in lines
    assert "rise 1 2.50 ± 0.25 0.5 - agrees 0.97" in lines
    assert lines[-1] == (f"{verdict}: {missing}" if missing else verdict)
    assert typed(client, "verdict", "table1", "--json")[0] == code
    assert client.calls[-1] == ("verdict", "table1", ["a", "b"])  # the newest runs


def test_the_facts_of_an_experiment_and_its_log(typed: Typed) -> None:
    """Fields that are empty are left out."""
    one: dict[str, Any] = {
        "id": ID, "name": "mine", "title": "mine", "tags": [], "note": None, "status": "running",
        "owner": "me", "sweep": None, "created_at": "a", "started_at": "b", "finished_at": None,
        "spec": {"model": {"family": "ppca", "latent_dim": 3, "experiment": None},
                 "data": {"source": "upload", "dataset": "ab", "n": 9}},
        "progress": {"done": 1, "total": 2, "unit": "masks"}, "queue": {"reason": "priority"},
        "failure": {"kind": "error", "message": "why"}, "metrics": [], "summary": [],
    }  # fmt: skip
    line = {"at": "2026-01-31T12:34:56.789Z", "level": "info", "message": "a\x1bb"}
    client = Recording(get=one, logs=lambda _, level=None: [] if level else [line])
    code, shown, error = typed(client, "show", ID)
    assert (code, error) == (0, "")
    assert [one_line(line) for line in shown.splitlines()] == [
        f"id {ID}", "name mine", "status running", "owner me", "model ppca latent_dim=3",
        "data upload ab", "created a", "started b", "progress 1 of 2 masks", "waits priority",
        "failure error: why",
    ]  # fmt: skip
    assert typed(client, "logs", ID)[1] == "2026-01-31 12:34:56 info    a\ufffdb\n"

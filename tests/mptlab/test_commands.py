"""Commands with a recording client: calls, output and exit statuses."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mptlab import NoAnswer, serve
from mptlab.cli import app
from mptlab.commands.context import CommandContext, connected
from mptlab.commands.following import comes_back, print_ended, print_warnings, result_lines
from mptlab.errors import Refused
from mptlab.texts import Texts
from tests.support.recording import ID, Recording, Typed, one_line

# Experiments by the words that name them


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
        ("show", "mine", "it is a sweep, mpt table mine"),
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


# Calls of the client


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


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["user", "add", "ann", "--role", "viewer"], ("add_user", "ann", "viewer")),
        (["user", "set", "ann", "--shares", "3", "--max-running", "4", "--disabled"],
         ("change_user", "ann", {"shares": 3, "max_running": 4, "active": False})),
        (["user", "set", "ann", "--max-gpu-hours", "1.5", "--max-bytes", "none", "--may-jump",
          "--role", "admin", "--max-submitted", "7"],
         ("change_user", "ann", {"role": "admin", "may_jump": True, "max_submitted": 7,
                                 "max_gpu_hours_a_day": 1.5, "max_bytes": None})),
        (["user", "set", "ann", "--subject", "a-17"],
         ("change_user", "ann", {"oidc_subject": "a-17"})),
        (["user", "set", "ann", "--subject", "none"],
         ("change_user", "ann", {"oidc_subject": None})),
        (["project", "add", "vision", "--shares", "3", "--member", "ann", "--member", "bob"],
         ("add_project", "vision", {"shares": 3, "members": ["ann", "bob"]})),
        (["project", "set", "vision", "--remove", "ann", "--max-running", "none", "--reopen"],
         ("change_project", "vision", {"remove_members": ["ann"], "max_running": None,
                                       "open": True})),
        (["project", "close", "vision"], ("change_project", "vision", {"open": False})),
        (["key", "add", "ann", "--label", "ci", "--scope", "read", "--scope", "submit",
          "--days", "2"],
         ("add_key", "ann", {"name": "ci", "scopes": ["read", "submit"], "lasts_days": 2.0})),
    ],
)  # fmt: skip
def test_admins_change_users_and_keys(
    typed: Typed, words: list[str], called: tuple[Any, ...]
) -> None:
    client = Recording(
        add_key={"key": "mpt_secret"}, change_user={"name": "ann"},
        add_project={"name": "vision"}, change_project={"name": "vision"},
    )  # fmt: skip
    code, shown, error = typed(client, "admin", *words)
    assert (code, client.calls[0]) == (0, called), error
    assert ("mpt_secret" in shown) == (words[1] == "add" and words[0] != "project")


@pytest.mark.parametrize("limit", [["--max-running", "1.5"], ["--max-gpu-hours", "x"], []])
def test_a_limit_is_a_number_or_none(typed: Typed, limit: list[str]) -> None:
    client = Recording()
    code, _, error = typed(client, "admin", "user", "set", "ann", *limit)
    assert (code, client.calls) == (2, [])
    assert " ".join(limit) in one_line(error)


DRAIN = {"host": "gpu3", "since": "2026-01-31T16:00:00Z", "drained_by": "ann",
         "starts_at": "2026-01-31T16:00:00Z", "has_begun": True,
         "hand_back_at": "2026-01-31T17:00:00Z", "until": None}  # fmt: skip
PLANNED = {**DRAIN, "has_begun": False}


def test_times_of_a_drain(typed: Typed) -> None:
    """Durations, and times in the time zone of the terminal, of today or tomorrow."""
    hour = timedelta(hours=1)
    clock = datetime.now()
    for words, hand_back_s, until_s in (
        ((), None, None),
        (("--until", "1.5h"), None, 5400),
        (("--hand-back", "0s", "--until", "1d"), 0, 86_400),
        (("--until", f"{clock - 2 * hour:%H:%M}"), None, 22 * 3600),
        (("--until", f"{clock + 50 * hour:%Y-%m-%dT%H:%M}"), None, 50 * 3600),
        (("--until", (datetime.now(UTC) + hour).isoformat()), None, 3600),
    ):
        client = Recording(drain=DRAIN)
        assert typed(client, "admin", "drain", "gpu3", *words)[0] == 0
        ((*_, hand_back, until, start),) = client.calls
        assert hand_back == hand_back_s
        assert until == (until_s and pytest.approx(until_s, abs=90))
        assert start is None


DAY_S = 86_400.0
TOLERANCE_S = 3690.0
"""A day may have an hour more or less."""


@pytest.mark.parametrize("name", ["%a", "%A"])
def test_a_planned_drain_begins_at_a_typed_time(typed: Typed, name: str) -> None:
    """Later times are the next ones after its begin."""
    in_two_days, an_hour_ago = (datetime.now() + timedelta(hours=hours) for hours in (48, -1))
    for at, begin_s in (
        ("3h", 3 * 3600),
        (f"{in_two_days:{name} %H:%M}", 2 * DAY_S),
        (f"{an_hour_ago:{name} %H:%M}", 7 * DAY_S - 3600),
        (f"{an_hour_ago:%H:%M}", DAY_S - 3600),
        (f"{in_two_days:%Y-%m-%d %H:%M}", 2 * DAY_S),
    ):
        for until, hand_back, end_s, hand_back_s in (
            ("1.5h", "30m", 5400, 1800),
            ("1d", None, DAY_S, None),
        ):
            client = Recording(drain=PLANNED)
            words = (
                "--at",
                at,
                "--until",
                until,
                *(("--hand-back", hand_back) if hand_back else ()),
            )
            assert typed(client, "admin", "drain", "gpu3", *words)[0] == 0
            ((*_, hands_back, ends, begins),) = client.calls
            assert begins == pytest.approx(
                begin_s, abs=TOLERANCE_S if begin_s >= DAY_S - 3600 else 90
            )
            assert ends - begins == pytest.approx(end_s)
            assert hands_back == (hand_back_s and pytest.approx(begins + hand_back_s))


def test_a_time_of_day_is_the_next_one_after_the_begin(typed: Typed) -> None:
    client = Recording(drain=PLANNED)
    words = ("--at", "2100-12-04 08:00", "--hand-back", "08:30", "--until", "Sun 07:00")
    assert typed(client, "admin", "drain", "gpu3", *words)[0] == 0
    ((*_, hand_back, until, begin),) = client.calls
    assert hand_back - begin == pytest.approx(1800)
    assert until - begin == pytest.approx(23 * 3600), "2100-12-05 is a Sunday"


@pytest.mark.parametrize(
    "words",
    [
        ("--until", "soon"),
        ("--until", "1w"),
        ("--until", "2026-01-01"),
        ("--at", "2026-01-01 08:00"),
        ("--at", "Sut 08:00"),
        ("--at", "Sat"),
        ("--at", "25:00"),
        ("--at", "2100-01-31 08:00", "--until", "2100-01-30 08:00"),
        ("--at", "2100-01-31 08:00", "--hand-back", "2100-01-30 08:00"),
    ],
)
def test_a_time_that_is_none_or_has_passed_is_refused(typed: Typed, words: tuple[str, ...]) -> None:
    client = Recording()
    code, _, error = typed(client, "admin", "drain", "gpu3", *words)
    assert (code, client.calls) == (2, [])
    assert " ".join(words[-2:]) in one_line(error)


def test_the_audit_is_printed_up_to_the_limit(typed: Typed) -> None:
    client = Recording(audit=lambda **_: iter([{"at": str(i), "actor": "a"} for i in range(3)]))
    words = ("admin", "audit", "--actor", "ann", "--object", "x", "--limit", "2", "--json")
    assert [row["at"] for row in json.loads(typed(client, *words)[1])] == ["0", "1"]
    assert client.calls == [("audit", {"actor": "ann", "object_id": "x", "limit": 2})]


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


# Commands of the server


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["migrate"], ("service.operations.prepare",)),
        (["api"], ("service", "--host", "127.0.0.1", "--port", "8765")),
        (["controller"], ("worker.controller",)),
        (["worker"], ("worker", "cpu")),
        (["worker", "gpu", "--lifetime", "3h"], ("worker", "gpu", "--lifetime", "3h")),
        (["worker", "gpu", "--all", "--slots", "2"], ("worker.every_gpu", "--slots", "2")),
        (["backup", "to", "--store-only", "--finish"],
         ("service.operations.backup", "save", "to", "--store-only", "--finish")),
        (["restore", "to"], ("service.operations.backup", "restore", "to")),
        (["admin", "apply-retention", "--dry-run"], ("service.operations.retention", "--dry-run")),
    ],
)  # fmt: skip
def test_a_part_of_the_service_runs_as_a_program(
    monkeypatch: pytest.MonkeyPatch, words: list[str], program: tuple[str, ...]
) -> None:
    programs: list[tuple[str, ...]] = []
    monkeypatch.setattr(serve, "become", lambda *arguments: programs.append(arguments))
    assert CliRunner().invoke(app, words).exit_code == 0
    assert programs == [program]


@pytest.mark.parametrize(
    "words",
    [["worker", "cpu", "--all"], ["worker", "gpu", "--slots", "2"], ["backup", "to", "--finish"]],
)
def test_options_that_do_not_go_together_are_refused(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert words[2] in one_line(done.stderr)


# Printed


def test_drained_machines_are_shown_with_their_workers(typed: Typed) -> None:
    plain = {"host": "a", "queue": "cpu", "gpu": None, "busy": True, "experiment_id": None}
    drained = {**plain, "host": "gpu3", "drain": DRAIN}
    until = {**drained, "busy": False, "drain": {**DRAIN, "until": "2026-01-31T18:00:00+00:00"}}
    assert "drained" not in typed(Recording(workers=[plain]), "workers")[1]
    _, shown, _ = typed(Recording(workers=[plain, drained, until]), "workers")
    at, end = (f"{datetime(2026, 1, 31, hour, tzinfo=UTC).astimezone():%Y-%m-%d %H:%M}"
               for hour in (17, 18))  # fmt: skip
    lines = [line for line in shown.splitlines() if "gpu3" in line]
    assert f"by ann, hands back at {at}" in lines[0]
    assert f"by ann until {end}" in lines[1]
    planned = {**drained, "busy": False, "drain": {**PLANNED, "starts_at": DRAIN["hand_back_at"]}}
    assert f"by ann from {at}" in typed(Recording(workers=[planned]), "workers")[1]
    client = Recording()
    assert typed(client, "admin", "undrain", "gpu3")[0] == 0
    assert client.calls == [("undrain", "gpu3")]


def test_the_workers_with_the_memory_that_each_run_uses(typed: Typed) -> None:
    cpu = {"host": "h", "queue": "cpu", "busy": False, "experiment_id": None, "silent_s": 1.0,
           "gpu": None, "memory_ours": 2**29, "memory_free": 2**32,
           "memory_total": 15 * 2**29}  # fmt: skip
    gpu = cpu | {"queue": "gpu", "gpu": "A GPU", "gpu_number": 3, "gpu_memory_ours": 2**30,
                 "gpu_memory_free": 5 * 2**29, "gpu_memory_total": 2**33}  # fmt: skip
    unknown = gpu | {key: None for key in gpu if key.startswith("gpu_")}
    workers = [cpu, gpu, unknown]
    _, shown, _ = typed(Recording(workers=workers), "workers")
    assert [line for line in map(one_line, shown.splitlines()) if line.startswith("h ")] == [
        "h cpu - 0.5 GiB by its run, 4 of 7.5 free no - 1",
        "h gpu 3: A GPU 1 GiB by its run, 2.5 of 8 free no - 1",
        "h gpu A GPU ? GiB by its run, ? of ? free no - 1",
    ]
    assert "store full" not in shown
    assert json.loads(typed(Recording(workers=workers), "workers", "--json")[1]) == workers
    full = Recording(workers=[cpu | {"store_full": True}])
    assert "store full" in typed(full, "workers")[1]


def test_families_that_some_workers_do_not_run_are_shown(typed: Typed) -> None:
    plain = {"host": "a", "queue": "cpu", "gpu": None, "busy": False, "experiment_id": None,
             "silent_s": 1.0, "families": ["ppca"]}  # fmt: skip
    more = {**plain, "host": "b", "families": ["ppca", "markov"]}
    assert "also runs" not in typed(Recording(workers=[plain, plain]), "workers")[1]
    assert "also runs" not in typed(Recording(workers=[more]), "workers")[1]
    assert typed(Recording(workers=[]), "workers")[0] == 0
    _, shown, _ = typed(Recording(workers=[plain, more]), "workers")
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "also runs" in one_line(shown)
    assert ("markov" in lines["a"], "markov" in lines["b"]) == (False, True)


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


def test_the_own_share_is_printed_with_the_names_of_slurm(typed: Typed) -> None:
    share = {"raw_shares": 1, "norm_shares": 0.5, "raw_usage": 3.25, "effectv_usage": None,
             "level_fs": 2, "fair_share": 1 / 3}  # fmt: skip
    promise = "within 5 min: ann's run on gpu1 gives way by then"
    place = {"reason": "priority", "estimated_start": None, "promise": promise}
    waiting = {"id": ID, "queue": place}
    slot = {"name": "GPU 0 of node", "owner": "ann", "title": None, "since": "2026-01-02T03:04:05Z",
            "keeps_until": "2026-01-02T07:04:05Z", "expected_end": None,
            "displaced_by": ["bob", "carol"], "gives_way_to": "bob's digits"}  # fmt: skip
    idle = {"name": "node", "owner": None}
    queue = {"share": share, "running": 2, "max_running": 4, "submitted": 3, "max_submitted": None,
             "gpu_hours": 1.23456, "max_gpu_hours_a_day": 8.0, "items": [waiting],
             "slots": [slot, idle]}  # fmt: skip
    drains = [DRAIN, {**PLANNED, "host": "gpu4"}]
    code, shown, _ = typed(Recording(queue=queue, drains=drains), "queue")
    names, figures, counts, hours, drain, item, *slots = map(one_line, shown.splitlines())
    assert code == 0
    assert names == "RawShares NormShares RawUsage EffectvUsage LevelFS FairShare"
    assert figures == "1 0.5 3.25 - 2 0.333333"
    assert counts == "running 2 of 4, submitted 3"
    assert "1.23 of 8" in hours
    assert item == f"{ID} priority; starts: unknown; {promise}"
    assert drain.startswith("gpu4 is drained from 2026-01-3")
    assert slots[0].startswith("GPU 0 of node: ann's run since 2026-01-0")
    assert slots[0].endswith("bob or carol, now it is asked to give way to bob's digits")
    assert slots[1] == "node: no run"
    without_limit = Recording(queue={**queue, "max_gpu_hours_a_day": None}, drains=[])
    assert "GPU-hours" not in typed(without_limit, "queue")[1]


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


RESULT = {"name": "mpt", "labels": {}, "title": "mpt", "label": "MPT", "unit": "nats", "count": 1,
          "value": -10.1, "std_err": 0.1, "reason": None, "tokens": None, "before": None,
          "agreement": None, "meaning": ""}  # fmt: skip
"""A row of a summary."""
METRIC = {"name": "mpt", "labels": {"seed": 4, "model": "a"}, "value": -1.5, "std_err": 0.01234,
          "reason": None}  # fmt: skip


def test_how_experiments_ended_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {**METRIC, "labels": {}, "value": None, "std_err": None, "reason": "why"}
    interim = METRIC | {"labels": {"epoch": 0}, "value": -9.0}
    rows = [RESULT | {"label": None, "meaning": "estimates lml"}]
    run = {"id": "a", "name": "n\x1b", "metrics": [interim, METRIC, missing], "summary": rows}
    lines = ["mpt seed=4 model=a -1.500 ± 0.012 estimates lml", "mpt why",
             "mpt epoch=0 -9.000 ± 0.012"]  # fmt: skip
    print_ended([run])
    assert [*map(one_line, capsys.readouterr().out.splitlines())] == lines
    print_ended([run, {"id": "b", "name": None, "metrics": [], "summary": []}])
    assert [*map(one_line, capsys.readouterr().out.splitlines())] == ["a n\ufffd", *lines, "b"]


def test_the_result_is_printed_before_all_metrics() -> None:
    trained = RESULT | {
        "before": {"at": {"epoch": 0}, "value": -57.0, "std_err": 0.5}, "count": 3,
        "agreement": {"outcome": "agree", "text": "they agree", "value": 0.1, "std_err": 0.1},
    }  # fmt: skip
    area = RESULT | {"label": "Area", "value": -956.75, "std_err": None, "tokens": 512}
    missing = RESULT | {"label": "LML", "value": None, "std_err": None, "reason": "not final"}
    rows = [trained, area, missing, RESULT | {"label": None}]
    assert [one_line(line) for line in result_lines({"summary": rows})] == [
        "MPT -10.10 ± 0.10 nats, mean over 3 seeds; they agree: MPT - LML is 0.10 ± 0.10",
        "-57.00 ± 0.50 at epoch 0 → -10.10 ± 0.10",
        "Area -956.75 nats = -1.8687 × 512 tokens",
        "LML not final",
    ]


def test_a_score_without_an_error_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for name, value, error, is_explained in (
        ("mpt", -1.0, 0.1, False),
        ("mpt", None, None, False),
        ("kl", 1.0, None, False),
        ("mpt_heldout", -1.0, None, True),
    ):
        metric = METRIC | {"name": name, "value": value, "std_err": error, "reason": "few"}
        print_ended([{"id": "a", "name": None, "metrics": [metric], "summary": []}])
        assert ("has no error" in capsys.readouterr().err) == is_explained


def test_a_warning_of_some_experiments_has_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warnings = {"a": ["all", "two"], "b": ["all"], "c": ["all", "two", "two"]}
    client: Any = Recording(logs=lambda one, _: [{"message": told} for told in warnings[one]])
    print_warnings(CommandContext(client, False), {"a": "K=1", "b": "K=2", "c": "K=3"})
    assert capsys.readouterr().err == "mpt: all\nmpt: two (K=1; K=3)\n"


def test_an_outage_is_printed_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", "0.3")
    monkeypatch.setenv("MPT_API_KEY", "key")
    with connected("http://127.0.0.1:1") as client, pytest.raises(NoAnswer):
        client.me()
    output, error = capsys.readouterr()
    assert output == ""
    assert "refused" in error


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


@pytest.mark.parametrize(
    ("command", "ids", "advice"), [("table", "a", "mpt table a"), ("watch", "abcdef", "mpt list")]
)
def test_an_interrupted_wait_says_in_one_line_how_to_resume_it(
    capsys: pytest.CaptureFixture[str], command: str, ids: str, advice: str
) -> None:
    with pytest.raises(KeyboardInterrupt), comes_back(command, [*ids]):
        raise KeyboardInterrupt
    output, error = capsys.readouterr()
    assert (output, error.count("\n")) == ("", 1)
    assert advice in error

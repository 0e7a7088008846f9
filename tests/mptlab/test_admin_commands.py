"""Commands of administrators and of the server, and what they say of workers."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from mptlab import serve
from mptlab.cli import app
from tests.support.recording import ID, Recording, Typed, one_line


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

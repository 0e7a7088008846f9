"""Commands without a service: the calls of the client that they make."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from mptlab import serve
from mptlab.cli import app
from mptlab.commands import context
from mptlab.commands.context import (
    CommandContext,
    with_context,
)
from mptlab.errors import Refused
from tests.support.recording import ID, Recording, Typed, one_line


def test_commands_that_call_the_service_have_connection_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client: Any = Recording()
    urls: list[str | None] = []
    ran: list[tuple[Any, ...]] = []

    @contextmanager
    def connected(url: str | None) -> Iterator[Recording]:
        urls.append(url)
        yield client

    def command(
        asked: CommandContext, word: str, count: Annotated[int, typer.Option(help="so many")] = 3
    ) -> None:
        """Say it."""
        ran.append((asked.client, asked.as_json, word, count))

    monkeypatch.setattr(context, "connected", connected)
    alone = typer.Typer()
    alone.command()(with_context(command))
    assert CliRunner().invoke(alone, ["a"]).exit_code == 0
    words = ["b", "--url", "http://x", "--json", "--count", "4"]
    assert CliRunner().invoke(alone, words).exit_code == 0
    assert urls == [None, "http://x"]
    assert ran == [(client, False, "a", 3), (client, True, "b", 4)]
    told = " ".join(CliRunner().invoke(alone, ["--help"]).stdout.split())
    for part in ("Say it.", "of the service", "print JSON, for programs", "so many"):
        assert part in told
    assert "default: None" not in told


# Experiments by the words that name them


def listed(*experiments: dict[str, Any], sweeps: Any = ()) -> tuple[CommandContext, Recording]:
    """Return a context whose client has these experiments and sweeps."""
    client: Any = Recording(
        experiments=lambda **_: iter(experiments),
        sweeps=lambda **_: iter(sweeps),
        presets=[{"name": "table1"}],
        get_sweep=lambda sweep_id: sweep_id,
    )
    return CommandContext(client, False), client


OLDER = {"id": "f" * 32, "name": "k", "status": "failed", "created_at": "2026-01-02T03:04:05Z"}
NEWER = {**OLDER, "id": "e" * 32, "created_at": "2026-01-02T03:05:05Z"}


def test_an_experiment_is_searched_by_part_of_its_id_or_name() -> None:
    found, client = listed(OLDER)
    assert found.id(ID) == ID
    assert client.calls == []
    assert found.ids(["fff", "no hex", "ann/k"]) == [OLDER["id"]] * 3
    queries = [query for _, query in client.calls]
    assert {"filter": 'id >= "fff" and id < "fffg"', "limit": 5} in queries
    names = [(query.get("owner"), query["name"]) for query in queries if "name" in query]
    assert names == [(None, "fff"), (None, "no hex"), (None, "ann/k"), ("ann", "k")]


def test_an_unknown_name_gets_advice() -> None:
    nothing, client = listed()
    for word in (ID, "x" * 201, ""):
        assert nothing.id(word) == word
        assert nothing.ids_named(word, 5) == [word]
    assert client.calls == []
    with pytest.raises(Refused, match=r"you have no experiment mine$") as refused:
        nothing.id("mine")
    assert refused.value.reason == "not_found"
    with pytest.raises(Refused, match="no experiment table1: it is a preset, mpt reproduce table1"):
        nothing.id("table1")
    swept, _ = listed(sweeps=[{**OLDER, "name": "mine"}])
    with pytest.raises(Refused, match="no experiment mine: it is a sweep, mpt table mine"):
        swept.id("mine")
    with pytest.raises(Refused, match="you have no sweep mime: did you mean mine"):
        swept.sweep("mime")
    assert swept.sweep_or_none("mime") is None


def test_only_commands_that_read_take_the_newest_of_a_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, _ = listed(OLDER, NEWER, sweeps=[NEWER, OLDER])
    each = f"{NEWER['id']} \\(failed, 2026-01-02 03:05\\), {OLDER['id']} \\(failed, "
    for refusing in (lambda: found.id("k"), lambda: found.sweep("k", newest=False)):
        with pytest.raises(typer.BadParameter, match=f"give an id; newest first: {each}"):
            refusing()
    assert found.id("k", newest=True) == NEWER["id"]
    used: Any = found.sweep("k")
    assert used == NEWER["id"]
    first, second = capsys.readouterr().err.splitlines()
    told = f"the newest is used, {NEWER['id']} (2026-01-02 03:05), not {OLDER['id']}"
    assert told in first
    assert told in second
    twice = [{**NEWER, "id": "e" * 31 + last} for last in "12"]
    begun, _ = listed(*twice, sweeps=twice)
    for refusing in (lambda: begun.id("e", newest=True), lambda: begun.sweep("e")):
        with pytest.raises(typer.BadParameter, match="give an id"):
            refusing()


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


def test_a_list_sends_the_typed_filters(typed: Typed) -> None:
    one = {
        "id": ID, "status": "succeeded", "owner": "me", "title": "mine",
        "created_at": "2026-01-31T12:34:56.789Z",
        "summary": [{"title": "mpt", "label": "MPT", "value": -1.0, "std_err": 0.12,
                     "tokens": None}],
    }  # fmt: skip
    client = Recording(experiments=lambda **_: iter([one, {**one, "id": "second"}]))
    words = "list --name a --tag b --status c --where d --order-by e --lab --limit 1"
    code, shown, _ = typed(client, *words.split())
    given = {"name": "a", "tag": ["b"], "status": ["c"], "filter": "d", "order_by": "e"}
    query = {"limit": 1, "summary": True, **given, "whose": "lab"}
    assert client.calls == [("experiments", query)]
    header, row = (one_line(line) for line in shown.splitlines() if line[:3] in (" id", " 01"))
    assert (code, header) == (0, "id name status owner result created")
    assert row == f"{ID} mine succeeded me mpt -1.00 ± 0.12 2026-01-31 12:34"
    typed(client, "list", "--limit", "900")
    assert client.calls[-1] == ("experiments", {"limit": 500, "summary": True})


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["user", "add", "ann", "--role", "viewer"], ("add_user", "ann", "viewer")),
        (["user", "add", "ann"], ("add_user", "ann", "member")),
        (["user", "set", "ann", "--shares", "3", "--max-running", "4", "--disabled"],
         ("change_user", "ann", {"shares": 3, "max_running": 4, "active": False})),
        (["user", "set", "ann", "--max-gpu-hours", "1.5", "--max-bytes", "none", "--may-jump",
          "--role", "admin", "--max-submitted", "7"],
         ("change_user", "ann", {"role": "admin", "may_jump": True, "max_submitted": 7,
                                 "max_gpu_hours_a_day": 1.5, "max_bytes": None})),
        (["key", "add", "ann", "--label", "ci", "--scope", "read", "--scope", "submit",
          "--days", "2"],
         ("add_key", "ann", {"name": "ci", "scopes": ["read", "submit"], "lasts_days": 2.0})),
        (["key", "add", "ann"], ("add_key", "ann")),
        (["key", "revoke", "ann", "k1"], ("revoke_key", "ann", "k1")),
    ],
)  # fmt: skip
def test_admins_change_users_and_keys(
    typed: Typed, words: list[str], called: tuple[Any, ...]
) -> None:
    client = Recording(add_key={"key": "mpt_secret"}, change_user={"name": "ann"})
    code, shown, error = typed(client, "admin", *words)
    assert (code, client.calls[0]) == (0, called), error
    assert ("mpt_secret" in shown) == ("add" in words)


@pytest.mark.parametrize(
    ("option", "number"), [("--max-running", "1.5"), ("--max-gpu-hours", "x"), ("--max-bytes", "")]
)
def test_a_limit_is_a_number_or_none(typed: Typed, option: str, number: str) -> None:
    code, _, error = typed(Recording(), "admin", "user", "set", "ann", option, number)
    assert code == 2
    assert f'{option} {number}: give a number, or "none"' in one_line(error)
    assert typed(Recording(), "admin", "user", "set", "ann")[0] == 2


DRAIN = {"host": "gpu3", "since": "2026-01-31T16:00:00Z", "drained_by": "ann",
         "hand_back_at": "2026-01-31T17:00:00Z", "until": None}  # fmt: skip


def test_times_of_a_drain(typed: Typed) -> None:
    """Durations, and times in the time zone of the terminal, of today or tomorrow."""
    hour = timedelta(hours=1)
    clock = datetime.now()
    for words, seconds in (
        ((), (None, None)),
        (("--until", "1.5h"), (None, 5400)),
        (("--hand-back", "0s", "--until", "1d"), (0, 86_400)),
        (("--until", f"{clock + 2 * hour:%H:%M}"), (None, 7200)),
        (("--until", f"{clock - 2 * hour:%H:%M}"), (None, 22 * 3600)),
        (("--until", f"{clock + 50 * hour:%Y-%m-%dT%H:%M}"), (None, 50 * 3600)),
        (("--until", (datetime.now(UTC) + hour).isoformat()), (None, 3600)),
    ):
        client = Recording(drain=DRAIN)
        code, _, _ = typed(client, "admin", "drain", "gpu3", *words)
        assert (code, client.calls) == (0, [("drain", "gpu3", *map(about, seconds))])


def about(seconds: float | None) -> Any:
    """To the minute, or None."""
    return seconds if not seconds else pytest.approx(seconds, abs=90)


@pytest.mark.parametrize(
    ("until", "told"),
    [("soon", "give a time such as"), ("1w", "give a time such as"),
     ("2026-01-01", "this time has passed")],
)  # fmt: skip
def test_a_time_that_is_none_is_refused(typed: Typed, until: str, told: str) -> None:
    code, _, error = typed(Recording(), "admin", "drain", "gpu3", "--until", until)
    assert (code, told in one_line(error)) == (2, True)


def test_the_audit_is_read_page_by_page(typed: Typed) -> None:
    client = Recording(audit=lambda **_: iter([{"at": str(i), "actor": "a"} for i in range(3)]))
    words = ("admin", "audit", "--actor", "ann", "--object", "x", "--limit", "2", "--json")
    assert [one["at"] for one in json.loads(typed(client, *words)[1])] == ["0", "1"]
    assert client.calls == [("audit", {"actor": "ann", "object_id": "x", "limit": 2})]
    typed(client, "admin", "audit", "--limit", "501")
    assert client.calls[-1] == ("audit", {"limit": 500})


def submitted(**beside: Any) -> tuple[Any, ...]:
    return ("submit", {"data": {"n": 5}}, beside) if beside else ("submit", {"data": {"n": 5}})


@pytest.mark.parametrize(
    ("words", "called"),
    [
        ([], submitted()),
        (["--name", "a", "--tag", "b", "--share", "--no-cache"],
         submitted(name="a", tags=["b"], visibility="lab", cache=False)),
        (["--name", ""], submitted(name="")),
    ],
)  # fmt: skip
def test_a_submission_sends_the_typed_fields(
    typed: Typed, tmp_path: Path, words: list[str], called: tuple[Any, ...]
) -> None:
    client = Recording(submit={"id": ID, "status": "queued"})
    file = tmp_path / "a.yaml"
    file.write_text("data: {n: 4}")
    assert typed(client, "submit", str(file), "--set", "data.n=5", *words) == (0, f"{ID}\n", "")
    code, shown, error = typed(client, "submit", "-", *words, "--json", text='{"data": {"n": 5}}')
    assert (code, json.loads(shown), error) == (0, {"id": ID, "status": "queued"}, "")
    assert client.calls == [called] * 2


@pytest.mark.parametrize("pair", ["data.n", "=5", "data.n="])
def test_a_change_is_a_field_and_its_value(typed: Typed, pair: str) -> None:
    code, _, error = typed(Recording(), "submit", "-", "--set", pair, text="{}")
    is_whole = pair == "data.n="
    assert code == (0 if is_whole else 2)
    assert ("is not FIELD=VALUE" in error) != is_whole


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
    ("words", "became"),
    [
        (["migrate"], ("service.operations.prepare",)),
        (["api", "--host", "::1", "--port", "1"], ("service", "--host", "::1", "--port", "1")),
        (["api"], ("service", "--host", "127.0.0.1", "--port", "8765")),
        (["controller"], ("worker.controller",)),
        (["worker"], ("worker", "cpu")),
        (["worker", "gpu", "--lifetime", "3h"], ("worker", "gpu", "--lifetime", "3h")),
        (["worker", "gpu", "--all"], ("worker.every_gpu",)),
        (["worker", "gpu", "--all", "--slots", "2"], ("worker.every_gpu", "--slots", "2")),
        (["backup", "to"], ("service.operations.backup", "save", "to")),
        (["backup", "to", "--store-only", "--finish"],
         ("service.operations.backup", "save", "to", "--store-only", "--finish")),
        (["restore", "to"], ("service.operations.backup", "restore", "to")),
        (["restore", "to", "--store-only"],
         ("service.operations.backup", "restore", "to", "--store-only")),
        (["admin", "apply-retention"], ("service.operations.retention",)),
        (["admin", "apply-retention", "--dry-run"], ("service.operations.retention", "--dry-run")),
    ],
)  # fmt: skip
def test_a_part_of_the_service_runs_as_a_program(
    monkeypatch: pytest.MonkeyPatch, words: list[str], became: tuple[str, ...]
) -> None:
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(serve, "become", lambda *given: found.append(given))
    assert CliRunner().invoke(app, words).exit_code == 0
    assert found == [became]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["worker", "cpu", "--all"], "--all works only with the queue gpu"),
        (["worker", "gpu", "--slots", "2"], "--slots works only with --all"),
        (["backup", "to", "--finish"], "--finish works only with --store-only"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], told: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert told in one_line(done.stderr)

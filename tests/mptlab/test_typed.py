"""Calls of the commands to the client, and their output, without a service."""

import json
from collections.abc import Callable, Iterator
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
from mptlab.commands.context import MAX_CANDIDATES, CommandContext, with_context
from mptlab.errors import Refused
from mptlab.texts import Texts

ID = "0123456789abcdef0123456789abcdef"
FULL: dict[str, Any] = {
    "id": ID, "name": "mine", "status": "succeeded", "owner": "me",
    "created_at": "2026-01-31T12:34:56.789Z", "title": "mine",
    "summary": [{"title": "mpt", "label": "MPT", "value": -1.0, "std_err": 0.12, "tokens": None}],
}  # fmt: skip


class Recording:
    """A client that records its calls, and returns prepared answers."""

    def __init__(self, **answers: Any):
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, *given, named) if named else (name, *given))
            answer = self.answers.get(name, {"id": ID, "status": "queued"})
            return answer(*given, **named) if callable(answer) else answer

        return call


Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Run a command on a recording client. Return its exit status, output and errors."""

    def run(client: Recording, *words: str, text: str | None = None) -> tuple[int, str, str]:
        @contextmanager
        def connected(url: str | None) -> Iterator[Recording]:
            assert url is None
            yield client

        monkeypatch.setattr(context, "connected", connected)
        done = CliRunner().invoke(app, words, input=text)
        return done.exit_code, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("command", ["cancel", "pause", "resume", "retry", "undelete"])
def test_experiments_are_changed_one_by_one(typed: Typed, command: str) -> None:
    other = ID[::-1]
    client = Recording(**{command: lambda one: {"id": one, "status": "new"}})
    assert typed(client, command, ID, other) == (0, f"{ID} new\n{other} new\n", "")
    assert client.calls == [(command, ID), (command, other)]
    _, shown, _ = typed(client, command, ID, "--json")
    assert json.loads(shown) == [{"id": ID, "status": "new"}]


def test_matching_experiments_are_cancelled(typed: Typed) -> None:
    client = Recording(cancel_matching={"cancelled": 3, "ending": 1})
    told = "3 cancelled, 1 running will end soon\n"
    assert typed(client, "cancel", "--tag", "a", "--status", "queued") == (0, told, "")
    assert typed(client, "cancel", "--user", "ann", "--filter", "x > 1")[0] == 0
    assert client.calls == [
        ("cancel_matching", {"tag": ["a"], "status": ["queued"], "whose": "mine"}),
        ("cancel_matching", {"owner": "ann", "filter": "x > 1", "whose": "all"}),
    ]
    for words in (["cancel"], ["cancel", ID, "--tag", "a"]):
        assert typed(client, *words)[0] == 2
    assert json.loads(typed(client, "cancel", "--tag", "a", "--json")[1])["ending"] == 1


def test_a_list_sends_the_typed_filters(typed: Typed) -> None:
    client = Recording(experiments=lambda **_: iter([FULL, {**FULL, "id": "second"}]))
    words = (
        "list",
        "--name",
        "a",
        "--tag",
        "b",
        "--status",
        "c",
        "--where",
        "d",
        "--order-by",
        "e",
    )
    code, shown, _ = typed(client, *words, "--lab", "--limit", "1")
    given = {"name": "a", "tag": ["b"], "status": ["c"], "filter": "d", "order_by": "e"}
    wanted = {"limit": 1, "summary": True, **given, "whose": "lab"}
    assert client.calls == [("experiments", wanted)]
    header, _, row = (line.split() for line in shown.splitlines() if line.strip())
    assert (code, header) == (0, ["id", "name", "status", "owner", "result", "created"])
    assert row == [
        ID,
        "mine",
        "succeeded",
        "me",
        "mpt",
        "-1.00",
        "±",
        "0.12",
        "2026-01-31",
        "12:34",
    ]
    typed(client, "list", "--limit", "900")
    assert client.calls[-1] == ("experiments", {"limit": 500, "summary": True})
    assert typed(client, "list")[1].split()[:5] == ["id", "name", "status", "result", "created"]


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
    assert f'{option} {number}: give a number, or "none"' in " ".join(error.split())
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
    assert (code, told in " ".join(error.replace("│", " ").split())) == (2, True)


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
    client = Recording()
    assert typed(client, "admin", "undrain", "gpu3")[0] == 0
    assert client.calls == [("undrain", "gpu3")]


def test_the_audit_is_read_page_by_page(typed: Typed) -> None:
    client = Recording(audit=lambda **_: iter([{"at": str(i), "actor": "a"} for i in range(3)]))
    words = ("admin", "audit", "--actor", "ann", "--object", "x", "--limit", "2", "--json")
    assert [one["at"] for one in json.loads(typed(client, *words)[1])] == ["0", "1"]
    assert client.calls == [("audit", {"actor": "ann", "object_id": "x", "limit": 2})]
    typed(client, "admin", "audit", "--limit", "501")
    assert client.calls[-1] == ("audit", {"limit": 500})


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
    assert told in " ".join(done.stderr.replace("│", " ").split())


def asked(*experiments: dict[str, Any], sweeps: Any = ()) -> tuple[CommandContext, Recording]:
    client: Any = Recording(
        experiments=lambda **_: iter(experiments),
        sweeps=lambda **_: iter(sweeps),
        presets=[{"name": "table1"}],
    )
    return CommandContext(client, False), client


def test_experiments_are_searched_by_part_of_id_or_name() -> None:
    found, client = asked({"id": "abc1", "status": "queued"})
    assert found.id(ID) == ID
    assert client.calls == []
    assert found.ids(["abc", "no hex"]) == ["abc1", "abc1"]
    assert client.calls == [
        ("experiments", {"filter": 'id >= "abc" and id < "abcg"', "limit": MAX_CANDIDATES}),
        ("experiments", {"name": "abc", "limit": MAX_CANDIDATES}),
        ("experiments", {"name": "no hex", "limit": MAX_CANDIDATES}),
    ]
    nothing, client = asked()
    assert nothing.id("x" * 201) == "x" * 201
    assert nothing.id("") == ""
    assert client.calls == []
    with pytest.raises(Refused, match=f"you have no experiment {'x' * 200}"):
        nothing.id("x" * 200)
    assert len(client.calls) == 4  # also for a sweep, a preset, and a similar name
    swept, _ = asked(sweeps=[{"id": "f" * 32, "name": "mine"}])
    with pytest.raises(Refused, match="you have no experiment mine: it is a sweep, mpt table mine"):
        swept.id("mine")
    with pytest.raises(Refused, match="no experiment table1: it is a preset, mpt reproduce table1"):
        nothing.id("table1")


def test_ambiguous_names_list_the_matches() -> None:
    older = {"id": "abc1", "status": "failed", "created_at": "2026-01-02T03:04:05Z"}
    newer = {"id": "abc2", "status": "queued", "created_at": "2026-01-02T03:05:05Z"}
    found, _ = asked(older, newer)
    with pytest.raises(typer.BadParameter) as refused:
        found.id("abc")
    assert str(refused.value) == (
        "abc matches several experiments, give an id; newest first: abc2 (queued, 2026-01-02 "
        "03:05), abc1 (failed, 2026-01-02 03:04)"
    )


def test_commands_that_read_take_the_newest_of_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    older = {"id": "f" * 32, "name": "k", "status": "failed", "created_at": "2026-01-02T03:04:05Z"}
    newer = {**older, "id": "e" * 32, "created_at": "2026-01-02T03:05:05Z"}
    found, client = asked(older, newer, sweeps=[newer, older])
    assert found.id("k", newest=True) == newer["id"]
    told = f"{newer['id']} (2026-01-02 03:05), not {older['id']} (2026-01-02 03:04)"
    assert capsys.readouterr().err == (
        f"mpt: k matches several experiments: the newest is used, {told}\n"
    )
    twice = [{**newer, "id": "e" * 31 + last} for last in "12"]
    begun, _ = asked(*twice, sweeps=twice)
    with pytest.raises(typer.BadParameter, match="matches several experiments"):
        begun.id("e", newest=True)
    with pytest.raises(typer.BadParameter, match="beginning of several ids"):
        begun.sweep("e")
    client.answers["get_sweep"] = lambda one: one
    used: Any = found.sweep("k")
    assert used == newer["id"]
    assert capsys.readouterr().err == f"mpt: k matches several sweeps: the newest is used, {told}\n"


@pytest.mark.parametrize(("count", "is_shown"), [(20, True), (21, False)])
def test_few_scores_are_printed_beside_their_file(
    typed: Typed, tmp_path: Path, count: int, is_shown: bool
) -> None:
    rows = [{"row": i, "pll": -1.5} for i in range(count)]
    client = Recording(score=Texts(rows, ["row", "pll"], ID))
    code, shown, error = typed(
        client, "score", "a", "--model", "m", "--csv", str(tmp_path / "s.csv")
    )
    assert (code, error) == (0, f"{ID}\n")
    assert ("pll" in shown) == is_shown
    assert len((tmp_path / "s.csv").read_text().splitlines()) == count + 1


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


def test_validation_prints_the_cost_of_a_spec(typed: Typed) -> None:
    told = {"masks": 24, "points": 6, "memory_bytes": 3 * 2**20, "queue_reason": "a worker",
            "runtime": {"median_s": 12.4}, "cached_from": None}  # fmt: skip
    code, shown, _ = typed(Recording(validate=told), "validate", "-", text="{}")
    assert code == 0
    assert shown.splitlines() == [
        "the spec is valid", "masks            24", "points           6", "memory           3 MiB",
        "runtime          about 12 s", "would wait       a worker", "computed before  -",
    ]  # fmt: skip
    unknown = Recording(validate={**told, "runtime": None})
    assert "runtime          unknown" in typed(unknown, "validate", "-", text="{}")[1]


def test_a_sweep_sends_each_field(typed: Typed) -> None:
    class Sweep:
        id = "s1"

        def get(self) -> dict[str, str]:
            return {"id": "s1", "status": "running"}

    client = Recording(sweep=Sweep())
    over = ("--over", "a.b=1..2", "--over", "c=x", "--concurrency", "3", "--tag", "t")
    assert typed(client, "sweep", "-", *over, text="{}") == (0, "s1\n", "")
    grid = {"a.b": [1, 2], "c": ["x"]}
    assert client.calls == [("sweep", {}, grid, {"tags": ["t"], "concurrency": 3})]
    code, shown, _ = typed(client, "sweep", "-", "--over", "c=x", "--json", text="{}")
    assert (code, json.loads(shown)["status"]) == (0, "running")
    assert client.calls[-1] == ("sweep", {}, {"c": ["x"]})


def test_a_verdict_is_a_table_and_a_line(typed: Typed) -> None:
    row = {
        "what": "LML",
        "published": 1.0,
        "measured": 2.0,
        "low": 0.5,
        "high": 1.5,
        "outcome": "cannot tell",
        "power": 0.5,
    }
    verdict = {"verdict": "incomplete", "comparisons": [row], "missing": "a curve"}
    client = Recording(verdict=verdict)
    code, shown, _ = typed(client, "verdict", "table1", ID, ID)
    assert client.calls == [("verdict", "table1", [ID, ID])]
    header, _, values, power, told = (line.split() for line in shown.splitlines() if line.strip())
    columns = "what published measured agrees from to outcome power"
    assert header == columns.split()
    assert power == "Power is the probability to find agreement where it is true".split()
    assert values == ["LML", "1", "2", "0.5", "1.5", "cannot", "tell", "0.5"]
    assert (code, told) == (3, ["incomplete:", "a", "curve"])


def test_the_own_share_is_printed_like_slurm(typed: Typed) -> None:
    share = {"raw_shares": 1, "norm_shares": 0.5, "raw_usage": 3.25, "effectv_usage": None,
             "level_fs": 2, "fair_share": 1 / 3}  # fmt: skip
    waiting = {"id": ID, "queue": {"reason": "priority", "estimated_start": None}}
    found = {"share": share, "running": 2, "max_running": 4, "submitted": 3, "max_submitted": None,
             "gpu_hours": 1.23456, "max_gpu_hours_a_day": 8.0, "items": [waiting]}  # fmt: skip
    code, shown, _ = typed(Recording(queue=found), "queue")
    names, figures, counts, hours, item = shown.splitlines()
    assert code == 0
    columns = ("RawShares", "NormShares", "RawUsage", "EffectvUsage", "LevelFS", "FairShare")
    assert names == " ".join(f"{column:>12}" for column in columns)
    assert figures.split() == ["1", "0.5", "3.25", "-", "2", "0.333333"]
    assert counts == "running 2 of 4, submitted 3"
    assert hours == "GPU-hours in the last 24 h: 1.23 of 8"
    assert item == f"{ID}  priority; starts: unknown"
    none = {**found, "max_gpu_hours_a_day": None, "items": []}
    assert len(typed(Recording(queue=none), "queue")[1].splitlines()) == 3


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


def test_the_workers_with_the_memory_that_each_run_uses(typed: Typed) -> None:
    cpu = {"host": "h", "queue": "cpu", "busy": False, "experiment_id": None, "silent_s": 1.0}
    gpu = {**cpu, "queue": "gpu", "busy": True, "gpu": "A GPU", "gpu_number": 3}
    memory = {"gpu_memory_ours": 2**30, "gpu_memory_free": 5 * 2**29, "gpu_memory_total": 2**33}
    unknown = dict.fromkeys(["gpu_number", *memory])
    main = {"memory_ours": 2**29, "memory_free": 2**32, "memory_total": 15 * 2**29}
    found = [{**cpu, "gpu": None, **unknown, **main}, {**gpu, **memory}, {**gpu, **unknown}]
    _, shown, _ = typed(Recording(workers=found), "workers")
    lines = [
        " ".join(line.split()) for line in shown.splitlines() if "host" in line or "h " in line
    ]
    assert lines == [
        "host queue gpu memory busy experiment id silent s",
        "h cpu - 0.5 GiB by its run, 4 of 7.5 free no - 1",
        "h gpu 3: A GPU 1 GiB by its run, 2.5 of 8 free yes - 1",
        "h gpu A GPU ? GiB by its run, ? of ? free yes - 1",
    ]
    assert json.loads(typed(Recording(workers=found), "workers", "--json")[1]) == found
    assert "gpu" not in typed(Recording(workers=found[:1]), "workers")[1]
    of_an_older_service = {name: gpu[name] for name in gpu if name != "gpu_number"}
    assert "? GiB by its run" in typed(Recording(workers=[of_an_older_service]), "workers")[1]

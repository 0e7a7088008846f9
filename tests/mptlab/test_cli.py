"""The command line with a real service, as a user types it: a few commands as processes, the
others in this process."""

import json
import os
import pty
import re
import signal
import stat
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mptlab import Client, NoAnswer, NotSucceeded, Refused, serve
from mptlab.commands import reading
from service.vocabulary import Role, Scope
from tests.support.commands import mpt as mpt_process
from tests.support.commands import mpt_here as mpt
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import MPT

Environment = dict[str, str]
WAITING = ppca_spec(compute__device="cuda")
"""It never starts, because there is no GPU worker."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def asked_json(environment: Environment, *arguments: str) -> Any:
    code, output, error = mpt(environment, *arguments, "--json")
    assert code == 0, error
    return json.loads(output)


@pytest.fixture(scope="module")
def run(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An experiment that was submitted as a YAML file, and followed to its end."""
    file = tmp_path_factory.mktemp("spec") / "spec.yaml"
    file.write_text(f"# a comment\n{json.dumps(ppca_spec(data__noise_precision=5))}")
    options = ("--set", "seeds=[4,44]", "--name", "a run", "--tag", "t1", "--tag", "t2")
    return asked_json(environment, "submit", str(file), *options, "--watch")


def test_fields_given_with_set_are_in_the_spec(run: Any) -> None:
    assert run["status"] == "succeeded"
    assert (run["spec"]["seeds"], run["name"], run["tags"]) == ([4, 44], "a run", ["t1", "t2"])


def test_submit_watch_curves(environment: Environment, tmp_path: Path) -> None:
    """The processes that a user starts."""
    code, shown, error = mpt_process(
        environment, "submit", "-", "--watch", text=json.dumps(ppca_spec())
    )
    assert code == 0, error
    experiment_id, *metrics = shown.splitlines()
    assert [line.split()[0] for line in metrics] == ["LML", "MPT", "lml", "mpt", "difference"]
    file = tmp_path / "curves.json"
    code, _, error = mpt_process(environment, "curves", experiment_id, "--output", str(file))
    assert code == 0, error
    (series,) = json.loads(file.read_text())
    assert series["x"] == [1, 2, 3, 4, 5, 6]


def test_a_list_is_filtered(environment: Environment, run: Any) -> None:
    filters = ("--name", "a run", "--tag", "t2", "--where", "metrics.lml < 0")
    assert [one["id"] for one in asked_json(environment, "list", *filters)] == [run["id"]]
    assert run["id"] in mpt(environment, "list", *filters)[1]
    assert asked_json(environment, "list", *filters, "--status", "failed") == []


def test_an_experiment_is_found_by_the_beginning_of_its_id_or_by_its_name(
    environment: Environment, run: Any
) -> None:
    for typed in (run["id"], run["id"][:-1], "a run"):
        assert asked_json(environment, "show", typed)["id"] == run["id"]
    for typed in (run["id"][1:], run["id"][:-1] + "g"):
        assert mpt(environment, "show", typed)[0] == 1


def test_an_ambiguous_name_changes_nothing(environment: Environment, client: Client) -> None:
    twins = [client.submit(WAITING, name="twin")["id"] for _ in range(2)]
    code, _, error = mpt({**environment, "COLUMNS": "400"}, "cancel", "twin")
    assert (code, "twin matches several experiments, give an id" in error) == (2, True)
    assert {client.get(one)["status"] for one in twins} == {"queued"}
    cancelled = asked_json(environment, "cancel", *twins)
    assert [(one["id"], one["status"]) for one in cancelled] == [
        (one, "cancelled") for one in twins
    ]


def test_all_experiments_of_a_name_are_compared(
    environment: Environment, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [ppca_spec(compute__device="cuda", seeds=[seed]) for seed in range(3)]
    three = [client.submit(spec, name="three", visibility="lab")["id"] for spec in specs]
    alone = client.submit(WAITING, name="alone")["id"]
    owner = client.me()["name"]
    for typed, ids in (
        (["three"], three[::-1]),
        ([f"{owner}/three"], three[::-1]),
        (["three", "alone", three[0]], [*three[::-1], alone]),
    ):
        assert [row["id"] for row in asked_json(environment, "compare", *typed)] == ids
    monkeypatch.setattr(reading, "MAX_COMPARED", 2)
    code, shown, error = mpt(environment, "compare", "three", "--json")
    assert (code, [row["id"] for row in json.loads(shown)]) == (0, three[:0:-1])
    assert "the 2 newest of several experiments with the name three" in error
    assert mpt(environment, "compare", "thre")[0] == 1
    for experiment_id in (*three, alone):
        client.cancel(experiment_id)


def test_curves_as_a_table_and_as_a_figure(
    environment: Environment, run: Any, tmp_path: Path
) -> None:
    code, output, _ = mpt(environment, "curves", run["id"], "--series", "score", "--csv", "-")
    header, *rows = output.splitlines()
    assert (code, header) == (0, "series,seed,x,value,std_err,n,reason")
    assert len(rows) == 2 * 6
    figure, table = tmp_path / "a.svg", tmp_path / "a.csv"
    result = mpt(environment, "curves", run["id"], "--csv", str(table), "--plot", str(figure))
    assert result == (0, f"{table}\n", "")
    assert "mask size m" in figure.read_text()
    assert len(table.read_text().splitlines()) == 1 + 2 * 6
    assert mpt(environment, "plot", "a run", str(tmp_path / "b.pdf"), "--kind", "area")[0] == 0
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")


# Errors and exit statuses


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("plot", "a run", "a.odt"), "a.odt is not a picture format: use .pdf, .svg or .png"),
        (("plot", "a run", "a.pdf", "--kind", "training"), "training needs the series mpt or elbo"),
        (("plot", "a run", "/proc/a.pdf"), "/proc/a.pdf: No such file"),
        (("curves", "a run", "--output", "/proc/a"), "/proc/a: No such file"),
        (("submit", "/etc/hostname"), "/etc/hostname is not valid JSON: "),
        (("submit", "-", "--set", "seeds.a=1"), "seeds.a is not a valid path"),
        (("submit", "-", "--set", "model.latent_dim=9"), "--set model.latent_dim: at most 5"),
        (("show", "no-such"), "you have no experiment no-such"),
        (("list", "--url", "lab:1"), "lab:1 is not a URL: start it with http:// or https://"),
        (("download", "a run", "weights"), "weights does not exist: the experiment has no files"),
        (("table", "a"), "you have no sweep a"),
    ],
)
@pytest.mark.usefixtures("run")
def test_an_impossible_command_prints_a_single_line(
    environment: Environment, arguments: tuple[str, ...], told: str
) -> None:
    code, output, error = mpt(environment, *arguments, text=json.dumps(ppca_spec()))
    assert (code, output, error.count("\n")) == (1, "", 1), error
    assert error.startswith(f"mpt: {told}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("shwo",), ("show",), ("submit", "/nowhere"), ("submit", "-", "--set", "seeds"),
        ("sweep", "-", "--over", "seeds"), ("sweep", "-", "--over", "seeds=[[1],"),
        ("serve", "--port", "99999"), ("api", "--port", "-1"), ("list", "--limit", "0"),
        ("sweep", "-", "--over", "data.n=1..99999999999"), ("presets", "--json", "run", "table1"),
    ],
)  # fmt: skip
def test_a_mistyped_command_prints_no_traceback(
    environment: Environment, arguments: tuple[str, ...]
) -> None:
    code, _, error = mpt(environment, *arguments, text="{}")
    assert code == 2
    assert "Traceback" not in error
    assert error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused({"detail": "no"}, 404), 1),
        (Refused({"detail": "away"}, 503), 4),
        (NoAnswer("http://lab", "refused"), 4),
        (TimeoutError("late"), 4),
        (NotSucceeded({"id": "a", "status": "cancelled"}), 3),
        (PermissionError(13, "denied", "/x"), 1),
        (ValueError("no spec"), 1),
        (AssertionError("a defect"), None),
    ],
)
def test_exit_statuses(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int | None
) -> None:
    def fail(_: Client) -> None:
        raise error

    monkeypatch.setattr(Client, "queue", fail)
    if status is None:
        with pytest.raises(AssertionError):
            mpt(environment, "queue")
    else:
        code, output, message = mpt(environment, "queue")
        assert (code, output, message.count("\n")) == (status, "", 1)


def test_a_client_without_a_key_says_where_to_set_one(
    environment: Environment, tmp_path: Path
) -> None:
    code, _, error = mpt({**environment, "MPT_STORE": str(tmp_path)}, "watch", "nothing")
    assert (code, "set MPT_API_KEY" in error, error.count("\n")) == (1, True, 1)


def test_a_failed_run_has_its_own_exit_status(environment: Environment, client: Client) -> None:
    first = client.submit(WAITING)["id"]
    second = client.submit(WAITING, after=[first], name="second")["id"]
    client.cancel(first)
    code, _, error = mpt(environment, "watch", second)
    assert code == 3
    assert error.splitlines()[-1].startswith(f"mpt: {second} (second) failed: invalid: ")
    code, output, error = mpt(environment, "watch", first, second, "--json")
    assert (code, error.splitlines()[-2]) == (3, f"mpt: {first} cancelled")
    assert [one["status"] for one in json.loads(output)] == ["cancelled", "failed"]


def heeds_interrupts() -> None:
    """Restore the handling of interrupts as at a terminal, also if the tests run in the
    background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_watch_says_that_the_run_continues(
    environment: Environment, client: Client
) -> None:
    waiting = client.submit(WAITING)["id"]
    with subprocess.Popen(
        [*MPT, "watch", waiting], env=environment, stderr=subprocess.PIPE, text=True,
        preexec_fn=heeds_interrupts,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == f"{waiting}  queued\n"
        process.send_signal(signal.SIGINT)
        message = process.stderr.read()
    assert process.returncode == 130
    for part in ("the run continues", f"mpt watch {waiting}", f"mpt cancel {waiting}"):
        assert part in message
    assert message.count("\n") == 1
    assert client.get(waiting)["status"] == "queued"
    client.cancel(waiting)


# Changes


def test_the_life_of_an_experiment(environment: Environment, client: Client) -> None:
    one = client.submit(WAITING)["id"]
    for command, status in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        assert mpt(environment, command, one) == (0, f"{one} {status}\n", "")
    code, output, _ = mpt(environment, "retry", one)
    again = output.split()[0]
    assert (code, client.get(again)["retry_of"]) == (0, one)
    assert mpt(environment, "cancel", again)[0] == 0
    code, _, error = mpt(environment, "delete", one, again)
    assert (code, "give --yes" in error) == (2, True)
    assert client.get(one)["status"] == "cancelled"
    deleted = mpt(environment, "delete", "--yes", one, again)
    assert deleted == (0, f"deleted {one}\ndeleted {again}\n", "")
    assert mpt(environment, "show", one)[0] == 1
    assert mpt(environment, "undelete", one) == (0, f"{one} cancelled\n", "")
    named = client.change(one, name="a name")
    told = asked_json(environment, "delete", "-y", one)
    assert told == [{"id": one, "name": named["name"]}]


@pytest.mark.parametrize(("typed", "is_deleted"), [("y\n", True), ("\n", False)])
def test_a_deletion_asks_for_confirmation_in_a_terminal(
    environment: Environment, client: Client, typed: str, is_deleted: bool
) -> None:
    one = client.submit(WAITING, name="asked about")["id"]
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    process = subprocess.Popen(
        [*MPT, "delete", one], env={**os.environ, **environment}, text=True,
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    shown, told = process.communicate()
    os.close(ours)
    os.close(theirs)
    assert f"{one} asked about queued" in told
    assert "Delete 1 experiment? [y/N]" in told
    assert shown.strip() == (f"deleted {one} asked about" if is_deleted else "")
    found: list[str] = [one["id"] for one in client.experiments(name="asked about", limit=10)]
    assert (one not in found) == is_deleted
    assert process.returncode == (0 if is_deleted else 1)


@pytest.fixture(scope="module")
def thesis(environment: Environment) -> str:
    key = (Path(environment["MPT_STORE"]) / "api-key").read_text().strip()
    with Client(environment["MPT_URL"], key) as client:
        made = client.experiments.create(ppca_spec(seeds=[77]), name="thesis", wait=True)
    return made.id


def test_an_experiment_is_described(environment: Environment, client: Client, thesis: str) -> None:
    assert mpt(environment, "tag", "thesis", "a", "b") == (0, f"{thesis} a, b\n", "")
    assert mpt(environment, "tag", "thesis", "c", "b") == (0, f"{thesis} a, c, b\n", "")
    assert mpt(environment, "tag", "thesis", "--remove", "a", "b") == (0, f"{thesis} c\n", "")
    assert mpt(environment, "note", "thesis", "for chapter 2")[0] == 0
    assert client.get(thesis)["note"] == "for chapter 2"
    assert mpt(environment, "note", "thesis", "")[0] == 0
    assert client.get(thesis)["note"] is None
    assert mpt(environment, "rename", "thesis", "k4")[1] == f"{thesis} k4 (private)\n"
    assert mpt(environment, "rename", "k4", "thesis")[1] == f"{thesis} thesis (private)\n"


def test_a_colleague_reads_a_shared_run_by_its_name(environment: Environment, thesis: str) -> None:
    _, key, _ = mpt(environment, "admin", "user", "add", "eve")
    eve = {**environment, "MPT_API_KEY": key.strip()}
    assert mpt(eve, "show", "local/thesis")[0] == 1
    assert mpt(environment, "share", "thesis")[1] == f"{thesis} thesis (lab)\n"
    code, shown, _ = mpt(eve, "show", "local/thesis")
    assert (code, shown.split()[1]) == (0, thesis)
    assert mpt(environment, "unshare", "thesis")[1] == f"{thesis} thesis (private)\n"
    assert mpt(eve, "show", "local/thesis")[0] == 1


def test_members_of_a_project_read_its_runs_and_data(
    environment: Environment, client: Client, tmp_path: Path
) -> None:
    _, key, _ = mpt(environment, "admin", "user", "add", "max")
    members = ("--member", "local", "--member", "max")
    assert mpt(environment, "admin", "project", "add", "vision", *members)[0] == 0
    spec = json.dumps(ppca_spec(seeds=[70]))
    words = ("submit", "-", "--name", "ours", "--project", "vision")
    code, shown, error = mpt(environment, *words, text=spec)
    assert code == 0, error
    max_ = {**environment, "MPT_API_KEY": key.strip()}
    assert mpt(max_, "show", "local/ours")[0] == 0
    assert shown.strip() in mpt(max_, "list", "--projects")[1]
    assert mpt(environment, "unshare", "ours")[1].endswith("(private)\n")
    assert mpt(max_, "show", "local/ours")[0] == 1
    assert mpt(environment, "share", "ours", "--project")[1].endswith("(project)\n")
    assert mpt(max_, "show", "local/ours")[0] == 0

    file = tmp_path / "ours.csv"
    file.write_text("a,b\n1,2\n3,4\n")
    code, upload_id, error = mpt(environment, "upload", str(file), "--project", "vision")
    assert code == 0, error
    with Client(client.url, key.strip()) as other:
        assert other.dataset(upload_id.strip())["project"] == "vision"
        assert [one["name"] for one in other.datasets(whose="project")] == ["ours.csv"]


@pytest.mark.usefixtures("thesis")
def test_a_bundle_has_the_name_of_its_run(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mpt(environment, "bundle", "thesis") == (0, "thesis.zip\n", "")
    assert zipfile.ZipFile("thesis.zip").testzip() is None
    assert mpt(environment, "bundle", "thesis", "b.zip")[1] == "b.zip\n"


def test_a_page_is_opened_signed_in(environment: Environment, thesis: str, tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    code, shown, error = mpt_process({**environment, "BROWSER": f"{browser} %s"}, "open", "thesis")
    assert (code, shown) == (0, f"opened /experiments/{thesis}\n"), error
    link = seen.read_text()
    assert link.startswith(f"{environment['MPT_URL']}/sign-in?next=/experiments/{thesis}#")
    assert mpt(environment, "open", "--json")[1].startswith('"http')


# The lab


def test_an_admin_adds_a_user_and_revokes_a_key(environment: Environment) -> None:
    code, key, _ = mpt(environment, "admin", "user", "add", "ann")
    assert code == 0
    ann = {**environment, "MPT_API_KEY": key.strip()}
    spec = json.dumps(ppca_spec())
    options = ("--label", "\x1b[31mnight", "--scope", "read", "--days", "2")
    code, second, error = mpt(environment, "admin", "key", "add", "ann", *options)
    assert code == 0, error
    code, shown, _ = mpt(ann, "admin", "key", "list", "ann")
    assert (code, "night" in shown, "\x1b" in shown) == (0, True, False)
    reading = {**environment, "MPT_API_KEY": second.strip()}
    code, _, error = mpt(reading, "submit", "-", text=spec)
    assert (code, error.count("\n")) == (1, 1)
    assert "lacks the scope submit: ask an admin" in error
    code, _, error = mpt(ann, "admin", "user", "list")
    assert (code, "which a member cannot have" in error) == (1, True)
    code, experiment_id, _ = mpt(ann, "submit", "-", "--share", text=spec)
    assert code == 0
    key_id = key.split("_")[1]
    assert mpt(environment, "admin", "key", "revoke", "ann", key_id)[0] == 0
    code, _, error = mpt(ann, "watch", experiment_id.strip())
    assert code == 1
    assert "the key from MPT_API_KEY: this API key was revoked: ask an admin for another" in error
    code, shown, _ = mpt(environment, "admin", "audit", "--object", key_id)
    (revoked,) = (line.split() for line in shown.splitlines() if "key.revoked" in line)
    assert (code, "local" in revoked) == (0, True)


def test_an_unknown_role_or_scope_is_refused_with_the_known_ones(
    environment: Environment,
) -> None:
    for typed, known in (
        (("user", "add", "eve", "--role", "boss"), [*Role]),
        (("user", "set", "local", "--role", "boss"), [*Role]),
        (("key", "add", "local", "--scope", "boss"), [*Scope]),
    ):
        code, _, error = mpt(environment, "admin", *typed)
        assert code == 1
        assert all(f"'{word}'" in error for word in known), error


def test_an_admin_changes_a_user(environment: Environment) -> None:
    _, key, _ = mpt(environment, "admin", "user", "add", "bob", "--role", "viewer")
    bob = {**environment, "MPT_API_KEY": key.strip()}
    assert mpt(environment, "admin", "user", "set", "bob", "--disabled")[0] == 0
    for limit, stored in (("4", "4"), ("0", "0"), ("none", "-")):
        limits = ("--shares", "2", "--max-running", limit, "--may-jump")
        _, shown, _ = mpt(environment, "admin", "user", "set", "bob", *limits)
        row = ["bob", "viewer", "no", "2", stored, "-", "-", "-", "yes"]
        assert row in [line.split() for line in shown.splitlines()]
    code, shown, _ = mpt(environment, "cancel", "--user", "bob", "--status", "queued")
    assert (code, shown.startswith("0 cancelled")) == (0, True)
    code, _, error = mpt(bob, "watch", "a")
    assert code == 1
    assert "the key from MPT_API_KEY: the user of this API key was disabled: ask an admin" in error
    code, _, error = mpt(environment, "admin", "key", "add", "bob", "--days", "0")
    assert (code, error.startswith("mpt: /lasts_days:")) == (1, True)


def test_retention_runs_on_the_server(environment: Environment) -> None:
    code, shown, _ = mpt_process(environment, "admin", "apply-retention", "--dry-run")
    assert (code, len(shown.splitlines())) == (0, 2)
    assert "would delete 0 experiments" in shown


def test_the_queue_says_why_a_run_waits(environment: Environment, client: Client) -> None:
    waiting = client.submit(WAITING)["id"]
    code, output, _ = mpt(environment, "queue")
    client.cancel(waiting)
    assert code == 0
    assert f"{waiting}  no GPU worker is registered; starts: unknown" in output.splitlines()


def test_workers_users_and_usage_are_listed(environment: Environment) -> None:
    (worker,) = asked_json(environment, "workers")
    assert worker["queue"] == "cpu"
    assert asked_json(environment, "queue")["share"]["raw_shares"] == 1
    assert "local" in [user["name"] for user in asked_json(environment, "admin", "user", "list")]
    usage = mpt(environment, "admin", "usage")[1]
    assert "fair share" in usage
    assert re.search(r"^ *local ", usage, re.M)  # other tests add users


def test_a_login_is_kept_for_its_own_url(environment: Environment, tmp_path: Path) -> None:
    url, key = environment["MPT_URL"], (Path(environment["MPT_STORE"]) / "api-key").read_text()
    home = {"HOME": str(tmp_path), "MPT_STORE": str(tmp_path / "none"), "MPT_RETRY_S": "0"}
    code, told, error = mpt(home, "login", "--url", url, "--key", key)
    assert (code, told.startswith(f"logged in as local at {url}")) == (0, True), error
    file = tmp_path / ".config/mptlab/login.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert mpt(home, "list")[0] == 0
    other = f"http://127.0.0.1:{serve.free_port()}"
    code, _, error = mpt(home, "list", "--url", other)
    assert (code, error.startswith("mpt: no API key")) == (1, True)  # it does not go elsewhere
    assert mpt(home, "logout")[0] == 0
    assert mpt(home, "list")[0] == 1
    code, _, error = mpt(home, "login", "--url", url, "--key", "mpt_a_b_c")
    assert code == 1
    assert not file.exists()


# A terminal


def test_a_shell_completes_ids(environment: Environment, run: Any) -> None:
    typed = {"_MPT_COMPLETE": "complete_bash", "COMP_CWORD": "2",
             "COMP_WORDS": f"mpt show {run['id'][:12]}"}  # fmt: skip
    program = [
        *MPT[:-1],
        MPT[-1].replace("import main;", "import app;").replace("main()", "app(prog_name='mpt')"),
    ]
    done = subprocess.run(program, env=environment | typed, capture_output=True, text=True)
    assert run["id"] in done.stdout.split()
    down = environment | typed | {"MPT_URL": f"http://127.0.0.1:{serve.free_port()}"}
    done = subprocess.run(program, env=down, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_terminal_of_eighty_columns(environment: Environment, run: Any) -> None:
    """The terminal shows a progress bar, a table that fits, and unbroken messages."""
    shown = at_terminal(environment, "list", "--limit", "50")
    assert run["id"][:12] in shown
    assert max(map(len, shown.splitlines())) <= 80
    shown = at_terminal(environment, "watch", run["id"])
    assert "a run  succeeded 100% |" in shown
    assert all(len(bar) <= 80 for bar in re.findall(r"a run .*?(?=[\r\n])", shown))
    assert "lml" in shown


def test_the_table_of_a_sweep_fits_eighty_columns(environment: Environment, client: Client) -> None:
    """With short headings, and without the scores that do not choose a model."""
    spec = ppca_spec(
        data__heldout=0.25, model__init="maximum_likelihood", model__noise_precision=None
    )
    sizes: dict[str, list[Any]] = {
        "model.latent_dim": [1, 2],
        "model.family": ["ppca", "factor_analysis"],
    }
    sweep = client.sweep(spec, sizes)
    sweep.wait(progress=False)
    lines = at_terminal(environment, "table", sweep.id).splitlines()
    head = next(line for line in lines if "latent dim" in line)
    assert all(len(line) <= 80 for line in lines[: lines.index(head) + 7])
    assert head.split() == [
        "latent",
        "dim",
        "family",
        "lml",
        "heldout",
        "behind",
        "best",
        "best",
        "id",
    ]
    (left_out,) = (line for line in lines if line.startswith("without "))
    assert "mpt_heldout" in left_out


def at_terminal(environment: Environment, *arguments: str) -> str:
    """Return the output of a command at a terminal."""
    ours, theirs = pty.openpty()
    seen = bytearray()
    settings = {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1", "MPT_RETRY_S": "0"}
    with subprocess.Popen(
        [*MPT, *arguments], env=environment | settings, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        try:
            while content := os.read(ours, 10_000):
                seen.extend(content)
        except OSError:
            pass  # the command has closed the other end
    os.close(ours)
    return ESCAPES.sub("", seen.decode())

"""Effect of each command, with the real command and a real service."""

import json
import os
import pty
import re
import signal
import stat
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mptlab import Client, serve
from mptlab.commands import reading
from mptlab.commands.context import print_table
from service.db.engine import Database
from service.experiments.models import Queue
from service.queue import workers
from service.queue.workers import Vitals
from service.settings import Settings
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


@pytest.mark.parametrize(
    "filters",
    [
        ("--name", "a run"),
        ("--tag", "t2", "--tag", "other"),
        ("--where", 'tag = "t1" and metrics.lml < 0', "--status", "succeeded"),
    ],
)
def test_a_list_is_filtered(environment: Environment, run: Any, filters: tuple[str, ...]) -> None:
    assert [one["id"] for one in asked_json(environment, "list", *filters)] == [run["id"]]
    _, shown, _ = mpt(environment, "list", *filters)
    assert [line.split()[0] for line in shown.splitlines() if "a run" in line] == [run["id"]]


def test_a_list_has_at_most_the_requested_length(environment: Environment, client: Client) -> None:
    waiting = [client.submit(WAITING)["id"] for _ in range(3)]
    newest = [one["id"] for one in asked_json(environment, "list", "--limit", "2")]
    assert newest == waiting[:0:-1]
    for one in waiting:
        client.cancel(one)


def test_an_experiment_is_found_by_part_of_its_id_or_name(
    environment: Environment, run: Any
) -> None:
    for typed in (run["id"], run["id"][:-1], "a run"):
        assert asked_json(environment, "show", typed)["id"] == run["id"]
    for typed in (
        run["id"][1:],
        run["id"][:-1] + "g",
    ):  # its end, and a text that it does not begin with
        assert mpt(environment, "show", typed)[0] == 1
    code, shown, _ = mpt(environment, "show", "a run")
    assert code == 0
    assert ["status", "succeeded"] in [line.split() for line in shown.splitlines()]


def test_an_ambiguous_name_is_refused(environment: Environment, client: Client) -> None:
    made = [client.submit(WAITING, name="twin") for _ in range(2)]
    twins = [one["id"] for one in made]
    code, _, error = mpt({**environment, "COLUMNS": "400"}, "cancel", "twin")
    assert code == 2
    told = [f"{one['id']} (queued, {one['created_at'][:16].replace('T', ' ')})" for one in made]
    newest_first = ", ".join(reversed(told))
    assert f"twin matches several experiments, give an id; newest first: {newest_first}" in error
    assert {client.get(one)["status"] for one in twins} == {"queued"}
    assert mpt(environment, "cancel", *twins)[0] == 0
    assert {client.get(one)["status"] for one in twins} == {"cancelled"}


def test_all_experiments_of_a_name_are_compared(
    environment: Environment, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [ppca_spec(compute__device="cuda", seeds=[seed]) for seed in range(3)]
    three = [client.submit(one, name="three")["id"] for one in specs]
    alone = client.submit(WAITING, name="alone")["id"]
    for typed, ids in (
        (["three"], three[::-1]),
        (["three", "alone", three[0]], [*three[::-1], alone]),
        ([alone, three[1]], [alone, three[1]]),
    ):
        assert [row["id"] for row in asked_json(environment, "compare", *typed)] == ids
    for most, kept, told in (
        (3, 3, ""),
        (2, 2, "mpt: the 2 newest of several experiments with the name three are compared\n"),
    ):
        monkeypatch.setattr(reading, "MAX_COMPARED", most)
        code, shown, error = mpt(environment, "compare", "three", "--json")
        assert (code, error) == (0, told)
        assert [row["id"] for row in json.loads(shown)] == three[::-1][:kept]
    assert mpt(environment, "compare", "thre")[0] == 1
    for one in (*three, alone):
        client.cancel(one)


def test_shared_experiments_of_a_name_are_compared(
    environment: Environment, client: Client
) -> None:
    owner = client.me()["name"]
    shared = [client.submit(WAITING, name="ours", visibility="lab")["id"] for _ in range(2)]
    rows = asked_json(environment, "compare", f"{owner}/ours")
    assert [row["id"] for row in rows] == shared[::-1]
    for one in shared:
        client.cancel(one)


def test_curves_as_a_table_and_as_a_figure(
    environment: Environment, run: Any, tmp_path: Path
) -> None:
    code, output, _ = mpt(environment, "curves", run["id"], "--series", "score", "--csv", "-")
    header, *rows = output.splitlines()
    assert (code, header) == (0, "series,seed,x,value,std_err,n,reason")
    assert len(rows) == 2 * 6
    figure, table = tmp_path / "a.svg", tmp_path / "a.csv"
    done = mpt(environment, "curves", run["id"], "--csv", str(table), "--plot", str(figure))
    assert done == (0, f"{table}\n", "")
    assert "mask size m" in figure.read_text()
    assert len(table.read_text().splitlines()) == 1 + 2 * 6
    assert mpt(environment, "plot", "a run", str(tmp_path / "b.pdf"), "--kind", "area")[0] == 0
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("plot", "a run", "a.odt"), "a.odt is not a picture format: use .pdf, .svg or .png"),
        (
            ("plot", "a run", "a.pdf", "--kind", "x"),
            "x is not a kind of figure: choose from training",
        ),
        (("plot", "a run", "a.pdf", "--kind", "training"), "training needs the series mpt or elbo"),
        (("plot", "a run", "/proc/a.pdf"), "/proc/a.pdf: No such file"),
        (("curves", "a run", "--output", "/proc/a"), "/proc/a: No such file"),
        (("submit", "/etc/hostname"), "/etc/hostname is not valid JSON: "),
        (("submit", "-", "--set", "seeds.a=1"), "seeds.a is not a valid path"),
        (("show", "no-such"), "you have no experiment no-such"),
        (("list", "--where", "nam = a"), "/query/filter: column 1: there is no field nam: did you"),
        (("list", "--url", "lab:1"), "lab:1 is not a URL: start it with http:// or https://"),
        (("presets", "run", "tabel1"), "there is no preset tabel1: did you mean table1?"),
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
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert line == f"{waiting}  queued\n"
    assert process.returncode == 130
    assert told == (
        f"mpt: the run continues; to watch it again: mpt watch {waiting}; "
        f"to cancel it: mpt cancel {waiting}\n"
    )
    assert client.get(waiting)["status"] == "queued"
    client.cancel(waiting)


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


@pytest.mark.parametrize(("typed", "is_deleted"), [("y\n", True), ("n\n", False), ("\n", False)])
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


@pytest.mark.parametrize(("verdict", "code"), [("agrees", 0), ("differs", 3), ("incomplete", 3)])
def test_the_exit_status_of_a_verdict(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, verdict: str, code: int
) -> None:
    found: dict[str, Any] = {"verdict": verdict, "comparisons": [], "missing": None}
    monkeypatch.setattr(Client, "verdict", lambda *_: found)
    assert mpt(environment, "verdict", "table1", "0" * 32)[0] == code
    assert mpt(environment, "verdict", "table1", "0" * 32, "--json")[0] == code
    of_runs: list[Any] = []

    def noted(_: Client, *given: Any) -> dict[str, Any]:
        of_runs.append(given)
        return found

    monkeypatch.setattr(Client, "verdict", noted)
    runs = [{"name": "table1", "runs": [{"id": "a"}, None, {"id": "b"}]}]
    monkeypatch.setattr(Client, "preset_runs", lambda _: runs)
    assert mpt(environment, "verdict", "table1")[0] == code
    assert of_runs == [("table1", ["a", "b"])]


def test_a_sweep_is_followed_to_its_table(environment: Environment, tmp_path: Path) -> None:
    masks = {"schedule": "all", "per_size": 40}
    spec = json.dumps(ppca_spec(model__init="random", evaluate__masks=masks))
    options = ("--over", "model.latent_dim=1..2", "--over", "seeds=[[4],[5]]", "--concurrency", "1")
    code, shown, error = mpt(environment, "sweep", "-", *options, "--watch", text=spec)
    assert code == 0, error
    sweep_id = error.split()[0]
    assert "succeeded" in error
    header, _, *rows = (line for line in shown.splitlines() if line.strip())
    assert header.split() == ["model.latent_dim", "lml", "mpt", "best"]
    assert [row.split()[0] for row in rows] == ["1", "2", "*", "The"]
    file = tmp_path / "table.csv"
    assert mpt(environment, "table", sweep_id, "--csv", str(file)) == (0, f"{file}\n", "")
    header, *rows = file.read_text().splitlines()
    assert header.startswith("point,experiment_id,status,model.latent_dim,seeds,")
    assert len(rows) == 4
    ids = [row.split(",")[1] for row in rows]
    compared = asked_json(environment, "compare", ids[0], ids[2])
    assert [row["model.latent_dim"] for row in compared] == [1, 2]
    assert all(row["mpt"] < 0 < row["mpt std_err"] for row in compared)
    assert sweep_id in [one["id"] for one in asked_json(environment, "sweeps")]


def test_markup_in_names_is_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["lml[model=a]"], [["[red]x\x1b[31m"]])
    shown = capsys.readouterr().out
    assert "lml[model=a]" in shown
    assert "[red]x\ufffd[31m" in shown


def test_a_spec_is_validated(environment: Environment) -> None:
    code, shown, _ = mpt(environment, "validate", "-", text=json.dumps(ppca_spec()))
    assert (code, shown.splitlines()[0]) == (0, "the spec is valid")
    assert ["masks", "24"] in [line.split() for line in shown.splitlines()]


def test_presets_and_a_verdict(environment: Environment, run: Any) -> None:
    assert "table1" in [one["name"] for one in asked_json(environment, "presets")]
    assert "fig1-left" in mpt(environment, "presets", "list")[1]
    code, _, error = mpt(environment, "verdict", "fig1-left", run["id"])
    assert (code, error.count("\n")) == (1, 1)
    made = asked_json(environment, "presets", "run", "table1")
    assert [one["name"] for one in made] == [f"table1 {part}/3" for part in (1, 2, 3)]
    mpt(environment, "cancel", *(one["id"] for one in made))


def test_an_upload(environment: Environment, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("a,b\n1,2\n3,4\n")
    code, dataset_id, _ = mpt(environment, "upload", str(file))
    assert code == 0
    names = {one["id"]: one["name"] for one in asked_json(environment, "datasets")}
    assert names[dataset_id.strip()] == "mine.csv"


def test_a_status_command_lists_the_workers(environment: Environment) -> None:
    (one,) = asked_json(environment, "workers")
    assert one["queue"] == "cpu"
    assert asked_json(environment, "queue")["share"]["raw_shares"] == 1
    assert "local" in [user["name"] for user in asked_json(environment, "admin", "user", "list")]
    header, local = (mpt(environment, "admin", "usage")[1].split("\n")[i] for i in (1, 3))
    assert ("fair share" in header, local.split()[0]) == (True, "local")


def test_workers_that_start_no_run_say_so(environment: Environment) -> None:
    assert "store full" not in mpt(environment, "workers")[1]
    with closing(Database(Settings(store=Path(environment["MPT_STORE"])).url)) as database:
        with database.transaction() as session:
            workers.beat(session, "full", Vitals("host", Queue.CPU, 1, store_full=True))
        assert "store full" in mpt(environment, "workers")[1]
        with database.transaction() as session:
            workers.leave(session, "full")


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
    assert run["id"] in shown
    assert max(map(len, shown.splitlines())) <= 80
    shown = at_terminal(environment, "watch", run["id"])
    assert "a run  succeeded" in shown
    assert "━" in shown
    assert "lml" in shown


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

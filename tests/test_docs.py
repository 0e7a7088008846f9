"""The documents are correct: their commands run, generated pages are up to date, and all names
exist. A fenced block that is marked no-run is for reading only."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from docs.reference import pages
from mptcore.specs import Limits, parse_spec
from mptlab.cli import app
from service.app import create_app
from service.db.engine import Database
from service.settings import Settings
from tests.support.attempts import claimed
from tests.support.processes import embedded_service

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))
WHY = ROOT / "docs" / "find-out-why.md"
CODE = [file for part in ("mptcore", "mptlab", "service", "worker") for file in
        sorted((ROOT / part).rglob("*.py"))]  # fmt: skip


class Block(NamedTuple):
    """A fenced block that is not marked no-run."""

    document: str
    language: str
    text: str


def blocks(document: Path) -> Iterator[Block]:
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", document.read_text(), re.S | re.M):
        yield Block(document.name, language, text)


def name_of(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("page", pages())
def test_generated_pages_are_up_to_date(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == pages()[page], "run `make docs`"


def test_every_setting_is_explained() -> None:
    rows = re.findall(r"^\| `(MPT_\w+)` .*\| (.*) \|$", pages()["settings.md"], re.M)
    assert len(rows) > len(Settings.model_fields)
    assert [variable for variable, meaning in rows if not meaning] == []


def test_every_environment_variable_is_listed() -> None:
    read = {name for file in CODE for name in re.findall(r"\bMPT_[A-Z_]+[A-Z]", file.read_text())}
    listed = set(re.findall(r"`(MPT_\w+)`", pages()["settings.md"]))
    assert read - listed == set()


@pytest.mark.parametrize(
    "block",
    [block for file in DOCUMENTS for block in blocks(file) if block.language == "json"],
    ids=lambda block: block.document,
)
def test_specs_in_the_docs_are_valid(block: Block) -> None:
    assert parse_spec(block.text.encode()).limit_problems(Limits()) == []


def test_every_risk_names_existing_tests() -> None:
    rows = re.findall(r"^\| API\d+ .*\| (.*) \|$", (ROOT / "docs/security.md").read_text(), re.M)
    assert len(rows) == 10
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named
        for file, test in named:
            (found,) = (ROOT / "tests").rglob(file)
            assert re.search(rf"^def {test}\(", found.read_text(), re.M), (file, test)


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=name_of)
def test_a_page_begins_with_whom_it_is_for(document: Path) -> None:
    assert re.match(r"# .*\n\nThis page is for ", document.read_text())


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_are_valid(document: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", document.read_text()):
        file = document.parent / target if target else document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            slugs = [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]
            assert anchor in slugs, (target, anchor)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_documented_commands_exist(document: Path) -> None:
    code = re.findall(r"```sh.*?```|`[^`\n]+`", document.read_text(), re.S)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = set(typer.main.get_group(app).commands)
    for text in code:
        assert set(re.findall(r"\bmake ([a-z]+)", text)) <= targets
        assert set(re.findall(r"(?:^|[\s&`])mpt ([a-z]+)", text)) <= commands


def test_every_route_is_described(settings: Settings) -> None:
    contract = create_app(settings).openapi()["paths"]
    routes = {
        f"{method.upper()} {path}" for path, methods in contract.items() for method in methods
    }
    table = re.findall(r"^\| `((?:GET|POST|DELETE|PATCH) [^`]*)` \| \S", api_page(), re.M)
    assert set(table) == routes, "docs/api.md has a row for each route"
    assert len(table) == len(routes)


def api_page() -> str:
    return (ROOT / "docs" / "api.md").read_text()


@pytest.fixture(scope="module")
def home(
    prepared_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, int]]:
    """A user's home with the embedded service at its default place, and its port."""
    folder = tmp_path_factory.mktemp("home")
    store = shutil.copytree(prepared_store, folder / ".local/share/mptlab")
    with embedded_service(Settings(store=store, database_url=None), folder / "log") as lab:
        lab.client().close()  # it answers
        yield folder, lab.port


FEWER = {"range(200)": "range(30)"}
"""Shorter loops for the test than in the document."""
PROGRAMS = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}


def typed(document: Path, folder: Path, port: int) -> list[str]:
    """Return the output of the blocks of a document, run in order."""
    return [
        printed(block.language, block.text, folder, port)
        for block in blocks(document)
        if block.language in PROGRAMS
    ]


def printed(language: str, text: str, folder: Path, port: int) -> str:
    """Run a program in a user's home, with `mpt` and the service, and return its output."""
    (folder / "mpt").write_text('exec python -c "from mptlab.cli import main; main()" "$@"\n')
    (folder / "mpt").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT),
                   "MPT_URL": f"http://127.0.0.1:{port}", "GOMP_SPINCOUNT": "0"}  # fmt: skip
    for shown, here in {":8765": f":{port}", **FEWER}.items():
        text = text.replace(shown, here)
    return subprocess.run(
        [*PROGRAMS[language], text],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip


@pytest.mark.slow  # as the other pages: an embedded service, and four programs
def test_the_readme_runs(home: tuple[Path, int]) -> None:
    folder, port = home
    by_command, by_python = typed(ROOT / "README.md", folder, port)
    by_filter = printed("sh", "python -m mptcore < spec.json", folder, port)
    assert by_python.startswith("succeeded ")
    (lml, _) = [json.loads(line) for line in by_filter.splitlines() if '"lml"' in line]
    assert lml["value"] == pytest.approx(-159.994, abs=0.001)
    assert f"{lml['value']:.3f}" in by_command
    assert f"{lml['value']}" in by_python
    assert "latent dim" in by_command
    assert "model.latent_dim" in by_python
    for figure in ("digits.pdf", "scores.pdf"):
        assert (folder / figure).read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_the_page_of_the_client_runs(home: tuple[Path, int]) -> None:
    folder, port = home
    by_python, of_sweep, by_asyncio, by_stream, _, by_command = typed(
        ROOT / "docs" / "client.md", folder, port
    )
    assert by_stream == 30 * "."
    assert (folder / "two-hundred.pdf").read_bytes().startswith(b"%PDF")
    assert by_python.startswith("succeeded -")
    assert "lml" in of_sweep
    assert by_asyncio.strip() == "['succeeded', 'succeeded', 'succeeded']"
    assert "table1" in by_command
    figures = ("training.svg", "evolution.svg", "curves.svg")
    assert all("<svg" in (folder / one).read_text() for one in figures)
    assert (folder / "five.pdf").read_bytes().startswith(b"%PDF")
    assert len((folder / "curves.csv").read_text().splitlines()) == 1 + 2 * 64


@pytest.mark.slow
def test_a_search_goes_on_after_a_restart(home: tuple[Path, int]) -> None:
    folder, port = home
    (program,) = (one.text for one in blocks(ROOT / "docs" / "optuna.md"))
    program = program.replace("TRIALS, AT_A_TIME = 9, 3", "TRIALS, AT_A_TIME = 4, 2")
    begun = program.split("while running or")[0]
    printed("python", f"{begun}begin()\n", folder, port)
    value, *_, experiment = printed("python", program, folder, port).split()
    shown = "print(*((one.state.name, one.user_attrs['experiment']) for one in study.trials))"
    trials = printed("python", f"{begun}{shown}\n", folder, port)
    assert trials.count("COMPLETE") + trials.count("PRUNED") == 4
    assert experiment in trials
    assert -400 < float(value) < -100
    again = printed("python", program, folder, port)
    assert again.split()[-1] == experiment


SUBMIT = """
echo '{"model": {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"},
    "data": {"source": "digits"},
    "evaluate": {"masks": {"schedule": "all", "per_size": 10}}}' > why.json
mpt submit why.json --name why --watch > why.txt
mpt submit why.json --set compute.device=cuda
"""


@pytest.mark.slow
def test_the_page_to_find_out_why_runs(home: tuple[Path, int]) -> None:
    folder, port = home
    waiting = printed("sh", SUBMIT, folder, port).strip()
    choice, _, files = typed(WHY, folder, port)
    by_queue = dict(re.findall(r"^(cpu|gpu) (None|\(Candidate.*)$", choice, re.M))
    assert by_queue["cpu"] == "None"
    assert by_queue["gpu"].endswith(f"'{waiting}')")
    (lml,) = re.findall(r"'name': 'lml', 'value': (\S+),", files)
    metrics = json.loads((folder / "experiment.json").read_text())["metrics"]
    assert float(lml) == next(row["value"] for row in metrics if row["name"] == "lml")
    assert "files/weights.safetensors" in files
    printed("sh", f"mpt cancel {waiting}", folder, port)  # other pages show the queue


def test_the_sql_to_find_out_why_works(either: Database) -> None:
    """Run the queries about an experiment that runs, on either database."""
    claim = claimed(either)
    is_sqlite = either.engine.dialect.name == "sqlite"
    sql = "".join(block.text for block in blocks(WHY) if block.language == "sql"
                  and not (is_sqlite and "pg_" in block.text))  # fmt: skip
    sql = sql.replace("'ID'", f"'{claim.experiment_id}'")
    if is_sqlite:
        sql = sql.replace("extract(epoch FROM now())", "strftime('%s', 'now')")
    *statements, _ = sql.split(";\n")
    with either.snapshot() as session:
        rows = [session.connection().exec_driver_sql(query).all() for query in statements]
    experiment, attempt = rows[0][0], rows[-2][0]
    assert (experiment.status, experiment.worker) == ("running", "w")
    assert experiment.lease_s > 0
    assert (attempt.attempt, attempt.outcome) == (1, None)


END = "=== the end of a block ==="


@pytest.mark.slow
def test_the_recipes_of_the_api_print_what_they_show(home: tuple[Path, int]) -> None:
    """Run the curl recipes first, because the Python recipes read their files."""
    assert unlike(home, "sh") == []
    assert unlike(home, "python") == []


def unlike(home: tuple[Path, int], language: str) -> list[tuple[str, str]]:
    """Run the blocks of one language in order. A text block after a program is its expected output,
    and … matches anything. Return the programs with other output, and this output."""
    found = [*blocks(ROOT / "docs" / "api.md"), Block("", "", "")]
    shown = [(one.text, after.text if after.language == "text" else "")
             for one, after in pairwise(found) if one.language == language]  # fmt: skip
    mark = {"sh": f"echo {END!r}\n", "python": f"print({END!r}, flush=True)\n"}[language]
    *outputs, rest = printed(language, "".join(text + mark for text, _ in shown), *home).split(
        f"{END}\n"
    )
    assert rest == ""
    return [
        (expected, output)
        for (_, expected), output in zip(shown, outputs, strict=True)
        if not re.fullmatch(re.escape(expected).replace("…", ".*"), output, re.S)
    ]

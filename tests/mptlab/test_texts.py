"""Scores of texts through the client and the command line."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from mptlab import Client
from mptlab import texts as module
from mptlab.commands.texts import sequence_of, table_of
from mptlab.text_tables import TextTable
from mptlab.texts import AMINO_ACIDS, Texts, score_spec, single_mutations
from tests.support import tiny_lm
from tests.support.answers import Answers
from tests.support.commands import mpt_here as mpt
from tests.support.recording import Recording, Typed

Environment = dict[str, str]
LINES = ["the cat sat on a mat", "the on cat mat a sat", "old dog", "dog old"]


@pytest.fixture(scope="module")
def run(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The rows that one command prints, with a checkpoint in a folder of the user."""
    folder = tmp_path_factory.mktemp("lines")
    tiny_lm.checkpoint(folder / "own")
    file = folder / "lines.txt"
    file.write_text("\n\n".join(LINES) + "\n")
    options = ("--score", "pll", "--score", "cumulative", "--target-std-err", "0.5",
               "--group-size", "2", "--json")  # fmt: skip
    words = ("score", str(file), "--model", str(folder / "own"), *options)
    code, output, error = mpt(environment, *words)
    assert code == 0, error
    code, shown, _ = mpt(environment, "show", error.split()[-1], "--json")
    assert json.loads(shown)["name"] == "lines by own"
    return json.loads(output)


def test_the_lines_of_a_file_are_scored(run: Any) -> None:
    assert [row["text"] for row in run] == LINES
    assert all(row["pll"] < 0 for row in run)
    assert all(row["cumulative"] < 0 for row in run)
    assert {row["rank"] for row in run[:2]} == {1, 2}


def test_texts_are_arguments_or_lines(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes("\ufeffa b\r\n \r\nc\u2028d\r\n".encode())
    for texts, lines in (
        ([str(file)], ["a b", "c\u2028d"]),
        (["no file"], ["no file"]),
        (["it ends in a.txt"], ["it ends in a.txt"]),
    ):
        assert table_of(texts, None, None).texts == lines
    for texts, reason in (
        ([str(file), "a"], "is a file: give one file, or texts"),
        ([f"{tmp_path}/"], "is a folder: give a text, or a file"),
        (["gone.txt"], "there is no file gone.txt"),
        (["gone.CSV"], "there is no file gone.CSV"),
    ):
        with pytest.raises(typer.BadParameter, match=reason):
            table_of(texts, None, None)
    with pytest.raises(typer.BadParameter, match="--column and --sep are for a file"):
        table_of(["a"], "smiles", None)
    file.write_text("\n")
    with pytest.raises(ValueError, match="has no text in it"):
        table_of([str(file)], None, None)


def test_the_texts_of_a_run_are_shown_best_first(
    environment: Environment, run: Any, client: Client, tmp_path: Path
) -> None:
    newest = client.experiments.list(1)[0]
    assert newest.texts(order="row") == run
    best = sorted(run, key=lambda row: -row["pll"])
    code, output, _ = mpt(environment, "texts", newest.id, "--top", "3")
    assert code == 0
    assert [line for line in output.splitlines() if "pll" in line]
    shown = [line.split()[0] for line in output.splitlines() if line.split()[:1] != []]
    assert [int(one) for one in shown if one.isdigit()] == [row["row"] for row in best[:3]]
    assert mpt(environment, "texts", newest.id, "--csv", str(tmp_path / "a.csv"))[0] == 0
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == LINES
    assert [float(row["pll"]) for row in rows] == [row["pll"] for row in run]


def scored(*scores: tuple[float | None, float | None], **more: Any) -> Texts:
    rows = [
        {"row": i, "text": "a", "cumulative": value, "cumulative_std_err": error, **more}
        for i, (value, error) in enumerate(scores)
    ]
    return Texts(rows, [*rows[0]])


def test_texts_that_errors_do_not_tell_from_the_best_are_named(typed: Typed) -> None:
    def printed(texts: Texts, *options: str) -> str:
        code, shown, _ = typed(Recording(score=texts), "score", "a", "--model", "m", *options)
        assert code == 0
        return shown

    five = scored((-9.0, 0.3), (-8.125, 0.4), (-7.0, 0.3), (-7.8, 0.3), (None, None))
    shown = printed(five)
    assert "-8.12 ± 0.40" in shown
    *_, best, pairs = shown.splitlines()
    assert best == "* highest cumulative: row 2"
    assert pairs.endswith("0~1, 1~3, 2~3")
    assert printed(scored((-1.0, 0.1), (-2.0, 0.1))).splitlines()[-1].endswith("row 0")
    assert "highest" not in printed(scored((-1.0, 0.1), (-2.0, 0.1), group=1))
    for target, count in ((("0.4",), 0), (("0.35",), 1), (("0.04", "--relative"), 2)):
        shown = printed(five, "--target-std-err", *target)
        assert (f"{count} of 4 texts have a larger error" in shown) == bool(count)


def test_a_cumulative_score_without_a_target_is_refused(environment: Environment) -> None:
    code, _, error = mpt(environment, "score", "a", "--model", "any", "--score", "cumulative")
    assert code == 2
    assert "cumulative needs --target-std-err, in nats, such as 1" in error


def page(rows: range, after: int | None) -> Any:
    return {"columns": ["row"], "items": [{"row": i} for i in rows], "next_offset": after}


def test_pages_are_read_up_to_the_limit(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptlab.experiments.MAX_TEXTS", 3)
    answers.says(page(range(3), 3), page(range(3, 5), None))
    with answers.client() as client:
        found = client.texts("a", order="-pll", columns=["row"])
        assert found == [{"row": i} for i in range(5)]
        assert found.columns == ["row"]
        asked = [dict(one.url.params) for one in answers.seen]
        same = {"order": "-pll", "columns": "row", "limit": "3"}
        assert asked == [same | {"offset": "0"}, same | {"offset": "3"}]
        answers.says(page(range(3), 3), page(range(3, 4), 4))
        assert len(client.texts("a", limit=4)) == 4
    assert [one.url.params["limit"] for one in answers.seen[2:]] == ["3", "1"]


def test_many_texts_are_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def upload(file: Path) -> Any:
        sent.append([json.loads(line)["text"] for line in file.read_text().splitlines()])
        return {"id": "a1"}

    lines = ["a\nb", "c"]
    assert score_spec(TextTable(lines), "tiny", upload, None, scores=["pll"]) == {
        "model": {"family": "masked_lm", "checkpoint": "tiny"},
        "data": {"source": "text", "lines": lines},
        "evaluate": {"texts": {"scores": ["pll"]}},
    }
    monkeypatch.setattr(module, "MAX_LINES", 1)
    spec = score_spec(TextTable(lines), {"family": "masked_lm"}, upload, {"threads": 1})
    assert sent == [lines]
    assert spec["data"] == {"source": "text", "dataset": "a1"}
    assert spec["model"] == {"family": "masked_lm"}
    assert spec["compute"] == {"threads": 1}


def test_a_table_is_a_data_frame() -> None:
    pytest.importorskip("pandas", reason="an extra of the client")
    found = Texts([{"row": 0, "pll": -1.0}, {"row": 1, "pll": None}], ["row", "pll"])
    frame = found.to_pandas()
    assert list(frame.columns) == ["row", "pll"]
    assert frame["pll"].isna().tolist() == [False, True]
    assert "<td>-1</td>" in found._repr_html_()


def test_single_mutations_are_all_changes_of_a_letter() -> None:
    assert single_mutations("MA", "AGM") == ["M1A", "M1G", "A2G", "A2M"]
    assert len(single_mutations("MKTAYIAKQR")) == 10 * 19


def test_a_wild_type_is_a_sequence_or_a_file(tmp_path: Path) -> None:
    for sequence in ("MKTA", "MKTA" * 300):  # longer than the name of a file may be
        assert sequence_of(sequence) == sequence
        assert table_of([sequence], None, None).texts == [sequence]
    file = tmp_path / "protein.fasta"
    for content, reason in (
        (">a\nMK\n>b\nMK\n", "several sequences"),
        ("MKTA\n>b\nYIAK\n", "several sequences"),
        (">a\n", "no sequence"),
    ):
        file.write_text(content)
        with pytest.raises(typer.BadParameter, match=reason):
            sequence_of(str(file))
    with pytest.raises(typer.BadParameter, match="there is no file"):
        sequence_of("protein.FASTA")


@pytest.mark.slow
def test_all_mutations_of_a_wild_type_are_scored(environment: Environment, tmp_path: Path) -> None:
    """Letters that are words of the tokenizer, by one command."""
    tiny_lm.network("esm", [*AMINO_ACIDS]).save_pretrained(tmp_path / "letters")
    tiny_lm.letter_tokenizer(AMINO_ACIDS).save_pretrained(tmp_path / "letters")
    model = ("--model", str(tmp_path / "letters"))
    code, output, error = mpt(environment, "score", *model, "--wild-type", "MKT", "--json")
    assert code == 0, error
    rows = json.loads(output)
    assert [row["text"] for row in rows] == single_mutations("MKT")
    assert all(row["masked_marginal"] is not None for row in rows)
    code, output, error = mpt(
        environment, "score", "M1A:K2E", *model, "--wild-type", "MKT", "--json"
    )
    assert [row["text"] for row in json.loads(output)] == ["M1A:K2E"], error
    long = AMINO_ACIDS * 10
    code, output, error = mpt(
        environment, "score", long, "AC", *model, "--window-overlap", "8", "--json"
    )
    assert code == 0, error
    assert [row["tokens"] for row in json.loads(output)] == [200, 2]
    assert [row["windows"] > 1 for row in json.loads(output)] == [True, False]
    code, _, error = mpt(environment, "score", *model)
    assert code == 2
    assert "--wild-type" in error


def test_the_best_of_a_group_is_decided_by_its_errors(
    environment: Environment, tmp_path: Path
) -> None:
    tiny_lm.checkpoint(tmp_path / "own")
    pair = ["the cat sat on a mat on a mat", "the mat sat on a mat on a cat"]
    options = ("--score", "cumulative", "--target-std-err", "0.5", "--group-size", "2")
    code, output, error = mpt(
        environment, "score", *pair, "--model", str(tmp_path / "own"), *options
    )
    assert code == 0, error
    assert "decided: whether" in output

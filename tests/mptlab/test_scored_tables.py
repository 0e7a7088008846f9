"""Scores of the texts of a table, through each way in: the scores are those of transformers."""

import csv
import json
from pathlib import Path
from typing import Any

import httpx
import pandas
import pytest
import torch
import transformers

from mptlab import Client
from mptlab.checkpoints import taken
from tests.support import tiny_lm
from tests.support.commands import mpt_here as mpt

Environment = dict[str, str]
TEXTS = ["the cat sat on a mat", None, "old qq dog", "dog old"]
FRAME = pandas.DataFrame({"name": [7, 8, 9, 10], "phrase": TEXTS, "tokens": [0.5, 1.5, None, 3.5]})
LEFT_OUT = "it has no text; a text of its group has no score"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_lm.checkpoint(tmp_path_factory.mktemp("model") / "own")


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[float | None]:
    return [tiny_lm.plain_pll(checkpoint, text) if text else None for text in TEXTS]


def check(rows: list[dict[str, Any]], expected: list[float | None]) -> None:
    assert [row["row"] for row in rows] == [0, 1, 2, 3]
    assert [row["text"] for row in rows] == [text or "" for text in TEXTS]
    for row, score in zip(rows, expected, strict=True):
        assert row["pll"] == (score if score is None else pytest.approx(score, abs=1e-4))
    assert [row["unknown"] for row in rows] == [0, None, 1, 0]
    assert rows[1]["reason"] == LEFT_OUT
    assert [row["rank"] is not None for row in rows] == [False, False, True, True]


def test_a_command_scores_the_text_of_a_table(
    environment: Environment, tmp_path: Path, checkpoint: Path, expected: list[float | None]
) -> None:
    file = tmp_path / "t.csv"
    FRAME.to_csv(file, index=False)
    options = ("--model", str(checkpoint), "--group-size", "2", "--json")
    code, output, error = mpt(environment, "score", str(file), *options)
    assert code == 0, error
    rows = json.loads(output)
    check(rows, expected)
    assert [int(row["name"]) for row in rows] == [7, 8, 9, 10]
    assert [row["input_tokens"] not in (None, "") for row in rows] == [True, True, False, True]
    told = [line for line in error.splitlines() if line.startswith("mpt: ")]
    assert "4 texts of column phrase, 1 of them empty; other columns: name, tokens" in told[0]
    assert told[1:] == [
        "mpt: 4 texts, 1 of them without scores, such as text 1: it has no text",
        "mpt: 1 of 4 texts have characters that the tokenizer does not know, or names of special "
        "tokens, such as text 2: the column unknown counts them, and scores do not tell them apart",
        "mpt: 1 of 2 groups are left out (each has a text without a score, or one text only): 0",
    ]


def test_a_client_and_plain_http_give_the_same_scores(
    client: Client, environment: Environment, checkpoint: Path, expected: list[float | None],
    tmp_path: Path,
) -> None:  # fmt: skip
    frame = FRAME.set_index("name")
    rows = client.score(frame, taken(checkpoint), column="phrase", group_size=2)
    check(rows, expected)
    assert [*rows.to_pandas().index] == [7, 8, 9, 10]
    assert rows.to_pandas()["input_tokens"].isna().tolist() == [False, False, True, False]
    assert len(rows.notes) == 4
    assert rows.notes[0].startswith("the table: 4 texts of column phrase, 1 of them empty")
    headers = dict(client._http.headers)
    path = f"{environment['MPT_URL']}/v1/experiments/{rows.experiment_id}/texts"
    check(httpx.get(path, headers=headers).json()["items"], expected)
    table = csv.DictReader(httpx.get(f"{path}?format=csv", headers=headers).text.splitlines())
    assert [row["unknown"] for row in table] == ["0", "", "1", "0"]
    metrics = client.experiments.get(rows.experiment_id).metrics
    assert metrics["texts_left_out"] == 1
    assert metrics["texts_with_unknown_tokens"] == 1
    code, _, error = mpt(environment, "texts", rows.experiment_id, "--csv", str(tmp_path / "a.csv"))
    assert code == 0, error
    assert "it has no text" in (tmp_path / "a.csv").read_text()


@pytest.fixture(scope="module")
def esm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of ESM as transformers saves it: with vocab.txt, without tokenizer.json."""
    folder = tiny_lm.published_checkpoint(tmp_path_factory.mktemp("model") / "esm", "esm")
    assert not (folder / "tokenizer.json").exists()
    return folder


def test_a_fasta_file_of_several_sequences_is_scored(
    environment: Environment, tmp_path: Path, esm: Path
) -> None:
    file = tmp_path / "two.fasta"
    file.write_bytes(b"\xef\xbb\xbf>one\r\nMKT\r\nAYI*\r\n>two\r\nACDE\r\n")
    code, output, error = mpt(environment, "score", str(file), "--model", str(esm), "--json")
    assert code == 0, error
    rows = json.loads(output)
    assert [(row["header"], row["text"]) for row in rows] == [("one", "MKTAYI"), ("two", "ACDE")]
    for row in rows:
        assert row["pll"] == pytest.approx(tiny_lm.plain_pll(esm, row["text"]), abs=1e-4)
    assert "1 of 2 sequences end in *" in error


def test_a_final_stop_changes_no_score_of_a_mutation(
    environment: Environment, tmp_path: Path, esm: Path
) -> None:
    file = tmp_path / "protein.fasta"
    file.write_text("\ufeff>one\nMKT\nAYI*\n")
    options = ("--wild-type", str(file), "--model", str(esm), "--json")
    code, output, error = mpt(environment, "score", "K2A", *options)
    assert code == 0, error
    (row,) = json.loads(output)
    network = transformers.EsmForMaskedLM.from_pretrained(esm).eval()
    tokenizer = transformers.EsmTokenizer.from_pretrained(esm)
    inputs = tokenizer("M<mask>TAYI", return_tensors="pt")
    with torch.no_grad():
        log_probs = network(**inputs).logits[0, 2].log_softmax(-1)
    new, old = tokenizer.convert_tokens_to_ids(["A", "K"])
    assert row["masked_marginal"] == pytest.approx(
        (log_probs[new] - log_probs[old]).item(), abs=1e-4
    )
    assert row["unknown"] == 0
    assert "1 of 1 sequences end in *" in error

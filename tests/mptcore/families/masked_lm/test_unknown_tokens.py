"""Unknown tokens and special tokens in texts: counted, said, and computed as transformers does."""

import math
from pathlib import Path
from typing import Any

import pytest

from mptcore.families.masked_lm.checkpoints import MASKED_LMS
from mptcore.protocol.records import Log, Record
from mptcore.run import resumable
from mptcore.runtime.state import RunState
from tests.mptcore.families.masked_lm.test_text_scores import of, scored
from tests.support import tiny_lm
from tests.support.runs import metric, spec_of, value_of

SPECIAL = ["the cat [SEP] sat", "[PAD] cat [PAD] dog ran", "[CLS] dog", "old [MASK] mat"]
TEXTS = [*SPECIAL, "the 漢字 cat qq", "the cat sat", "[UNK] cat"]
UNKNOWN = [1, 2, 1, 1, 2, 0, 1]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))
    return tmp_path / "models"


def warnings(records: list[Record]) -> list[str]:
    return [one.message for one in records if isinstance(one, Log) and one.level == "warning"]


def spec(checkpoint: str, lines: list[str], **texts: Any) -> dict[str, Any]:
    value = of(lines, **texts)
    value["model"]["checkpoint"] = checkpoint
    return value


@pytest.mark.parametrize("kind", MASKED_LMS)
def test_special_and_unknown_tokens_are_those_of_transformers(
    kind: str, models: Path, tmp_path: Path
) -> None:
    tiny_lm.checkpoint(models / kind, kind)
    rows, found = scored(spec(kind, TEXTS), tmp_path)
    assert [row["unknown"] for row in rows] == UNKNOWN
    expected = [tiny_lm.plain_pll(models / kind, text) for text in TEXTS]
    assert [row["pll"] for row in rows] == pytest.approx(expected, abs=1e-4)
    assert value_of(metric(found, "texts_with_unknown_tokens")) == 6
    assert warnings(found) == [
        "6 of 7 texts have characters that the tokenizer does not know, or names of special "
        "tokens, such as text 0: the column unknown counts them, and scores do not tell them apart"
    ]


def test_known_tokens_give_no_warning(models: Path, tmp_path: Path) -> None:
    tiny_lm.checkpoint(models / "tiny")
    rows, found = scored(spec("tiny", ["the cat", "old dog"]), tmp_path)
    assert [row["unknown"] for row in rows] == [0, 0]
    assert value_of(metric(found, "texts_with_unknown_tokens")) == 0
    assert warnings(found) == []


def test_a_text_of_special_tokens_alone_has_no_score(models: Path, tmp_path: Path) -> None:
    tiny_lm.checkpoint(models / "tiny")
    rows, found = scored(spec("tiny", ["[SEP] [PAD]", "old dog"]), tmp_path)
    assert (rows[0]["pll"], rows[0]["unknown"]) == (None, 2)
    assert rows[0]["reason"] == "it has no token that can be masked"
    assert value_of(metric(found, "texts_with_unknown_tokens")) == 0


@pytest.mark.parametrize("packing", ["sentences", "blocks"])
def test_a_curve_warns_of_unknown_tokens(models: Path, packing: str) -> None:
    tiny_lm.checkpoint(models / "tiny")
    value = spec("tiny", ["the cat", "old 漢字", "[SEP] dog", "red mat"])
    value["evaluate"] = {"masks": {"rates": [0.5]}}
    value["data"] |= {"packing": packing, "max_length": 6}
    found = [one for one in resumable(spec_of(value), RunState()) if one is not None]
    (warning,) = [one for one in warnings(found) if "does not know" in one]
    assert warning.startswith("2 of 4 sequences" if packing == "sentences" else "1 of 3 sequences")


def test_unknown_letters_of_a_wild_type_are_said(models: Path, tmp_path: Path) -> None:
    letters = "ACDEFGHIKLMNPQRSTVWY"
    tiny_lm.network("esm", [*letters, "XX"], scale=8).save_pretrained(models / "letters")
    tiny_lm.letter_tokenizer(letters).save_pretrained(models / "letters")
    for wild_type, unknown in (("MKTAJY", 1), ("MKTAY", 0)):
        options = {"scores": ["masked_marginal"], "wild_type": wild_type}
        rows, found = scored(spec("letters", ["K2A", "T3A"], **options), tmp_path)
        assert [row["unknown"] for row in rows] == [unknown] * 2
        assert all(math.isfinite(row["masked_marginal"]) for row in rows)
        assert value_of(metric(found, "texts_with_unknown_tokens")) == 2 * unknown
        told = [one for one in warnings(found) if one.startswith("the wild type has characters")]
        assert len(told) == unknown

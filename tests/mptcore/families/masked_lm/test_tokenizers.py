"""Tokenizers as transformers saves them for each type of model: the tokens and the scores are the
same."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers

from mptcore.families.masked_lm.checkpoints import MASKED_LMS, PretrainedSource, fast_esm
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.specs import MaskedLmModel
from tests.mptcore.families.masked_lm.test_text_scores import of, scored
from tests.support import tiny_lm

TEXTS = {
    "esm": ["MKTAYIAKQR", "MXKBZ", "mkTAyi", "MK-TA.", "MK<mask>TA", "M K  T A", "MK*J", "MKTA*"],
}
WORDS = ["the cat sat", "The old dog", "cats and dogs 漢", "a  red [MASK] mat", "old <mask> mat"]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))
    inputs.locate(None)
    return tmp_path / "models"


def source(name: str) -> PretrainedSource:
    return PretrainedSource.of(MaskedLmModel(family="masked_lm", checkpoint=name))


@pytest.mark.parametrize("kind", MASKED_LMS)
def test_a_published_checkpoint_gives_the_scores_of_transformers(
    kind: str, models: Path, tmp_path: Path
) -> None:
    tiny_lm.published_checkpoint(models / kind, kind)
    texts = TEXTS.get(kind, WORDS)
    published = transformers.AutoTokenizer.from_pretrained(models / kind)
    tokenizer = source(kind).tokenizer()
    for text in texts:
        assert tokenizer(text)["input_ids"] == published(text)["input_ids"]
    value = of(texts)
    value["model"]["checkpoint"] = kind
    rows, _ = scored(value, tmp_path)
    expected = [tiny_lm.plain_pll(models / kind, text) for text in texts]
    assert [row["pll"] for row in rows] == pytest.approx(expected, abs=1e-4)
    unknown = [row["unknown"] for row in rows]
    match kind:
        case "esm":
            assert unknown == [0, 0, 2, 0, 1, 0, 1, 1]
        case "roberta":  # h, l, 漢, brackets and capital letters have no token
            assert unknown == [1, 3, 1, 6, 2]
        case _:
            assert unknown[0] == 0
            assert min(unknown[2:]) >= 1


def esm(folder: Path, **options: Any) -> Any:
    (folder / "vocab.txt").write_text("\n".join(tiny_lm.ESM_TOKENS))
    return transformers.EsmTokenizer(str(folder / "vocab.txt"), **options)


def test_a_converted_tokenizer_of_esm_has_the_same_tokens(tmp_path: Path) -> None:
    slow = esm(tmp_path)
    fast = fast_esm(slow)
    assert fast.is_fast
    assert fast.get_vocab() == slow.get_vocab()
    assert {*fast.all_special_ids} == {*slow.all_special_ids}
    for name in ("pad", "unk", "cls", "eos", "mask"):
        assert getattr(fast, f"{name}_token_id") == getattr(slow, f"{name}_token_id")
    assert fast("MK", "TA")["input_ids"] == slow("MK", "TA")["input_ids"]
    draws = random.Random(1)
    blanks = [" ", "\t", "\n", "\x1c", "\x1f", "\x85", "\u2028", "\u3000"]
    parts = [*tiny_lm.ESM_TOKENS, *"mkt*Jé漢<>[]\u200b\ufeff", *blanks, "<mask", "mask>", "<null"]
    for _ in range(3000):
        text = "".join(draws.choices(parts, k=draws.randrange(12)))
        assert fast(text)["input_ids"] == slow(text)["input_ids"], repr(text)


def test_the_offsets_of_a_converted_tokenizer_are_those_of_the_letters(tmp_path: Path) -> None:
    (encoding,) = fast_esm(esm(tmp_path))(["M <mask>mkT"]).encodings
    assert encoding.offsets[1:-1] == [(0, 1), (2, 8), (8, 10), (10, 11)]


def test_the_digest_depends_on_a_vocabulary_without_a_tokenizer_file(models: Path) -> None:
    tiny_lm.published_checkpoint(models / "esm", "esm")
    before = source("esm").digest(weights=True)
    assert source("esm").digest(weights=True) == before
    file = models / "esm" / "vocab.txt"
    file.write_text(file.read_text().replace("X\nB", "B\nX"))
    assert source("esm").digest(weights=True) != before


@pytest.mark.parametrize(("name", "told"), [("pad", "pad token"), ("mask", "mask token")])
def test_a_tokenizer_without_a_token_is_refused_by_name(models: Path, name: str, told: str) -> None:
    tiny_lm.checkpoint(models / "tiny")
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "tiny")
    setattr(tokenizer, f"{name}_token", None)
    tokenizer.save_pretrained(models / "tiny")
    with pytest.raises(RunError, match=f"the checkpoint tiny has a tokenizer without a {told}"):
        source("tiny").tokenizer()


def test_a_config_without_a_pad_token_is_refused_by_name(models: Path) -> None:
    tiny_lm.published_checkpoint(models / "esm", "esm")
    config = json.loads((models / "esm" / "config.json").read_text())
    (models / "esm" / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    told = "the checkpoint esm is of type esm, but its config.json has no pad_token_id"
    with pytest.raises(RunError, match=told):
        source("esm").config()

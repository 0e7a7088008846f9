"""Parts of a run on a language model by themselves: texts, checkpoints, held-out sequences."""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers

from mptcore.data.texts import texts
from mptcore.families.masked_lm import corpus
from mptcore.families.masked_lm.checkpoints import (
    MASKED_LMS,
    PretrainedSource,
    fresh,
    network_of,
    positions,
)
from mptcore.families.masked_lm.run import MaskedLmRun, _check_vocabularies, _description
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.runtime.rng import generator_for
from mptcore.runtime.state import RunState
from mptcore.specs import MaskedLmExperiment, MaskedLmModel, PlainText
from tests.support import tiny_lm
from tests.support.lm_specs import BASE
from tests.support.runs import spec_of
from tests.support.texts import CPU, corpus_of


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MPT_MODELS_DIR with the checkpoint tiny."""
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))
    inputs.locate(None)
    return tmp_path


def model(**changes: Any) -> MaskedLmModel:
    return MaskedLmModel.model_validate({"family": "masked_lm", "checkpoint": "tiny", **changes})


def test_the_architecture_sets_the_longest_sequence() -> None:
    def config(kind: str, **sizes: int) -> Any:
        return SimpleNamespace(model_type=kind, pad_token_id=1, **sizes)

    assert positions(config("bert", max_position_embeddings=40)) == 40
    assert positions(config("bert")) == 512
    for kind in ("roberta", "esm"):
        assert positions(config(kind, max_position_embeddings=514)) == 512


def test_an_unsupported_architecture_is_refused_with_the_supported_names(models: Path) -> None:
    (models / "other").mkdir()
    (models / "other" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(RunError) as error:
        PretrainedSource.of(model(checkpoint="other")).config()
    assert str(error.value) == (
        "the checkpoint other is a gpt2; supported types are albert, bert, distilbert, electra, "
        "esm, modernbert, roberta"
    )
    assert error.value.cause == "invalid"
    assert list(MASKED_LMS) == sorted(MASKED_LMS)


def test_a_tokenizer_that_is_not_fast_is_refused(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SimpleNamespace(is_fast=False, mask_token_id=4)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: slow)
    with pytest.raises(RunError) as error:
        PretrainedSource.of(model()).tokenizer()
    told = "the checkpoint tiny has no tokenizer.json, the form that tokenizers reads"
    assert str(error.value) == told


def test_a_revision_is_only_for_the_hub(models: Path) -> None:
    with pytest.raises(RunError) as error:
        PretrainedSource.of(model(revision="main"))
    told = "the checkpoint tiny lies in MPT_MODELS_DIR, which has no revisions: leave it null"
    assert str(error.value) == told
    assert PretrainedSource.of(model()).location == str(models / "tiny")
    assert PretrainedSource.of(model(checkpoint="a/b", revision="v1")) == PretrainedSource(
        "a/b", "a/b", "v1"
    )


@pytest.mark.parametrize("weights", [True, False])
def test_a_checkpoint_is_identified_by_the_digest_of_its_files(models: Path, weights: bool) -> None:
    found = PretrainedSource.of(model()).digest(weights)
    patterns = ["*.json", "*.safetensors"] if weights else ["*.json"]
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in (models / "tiny").glob(pattern)):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    assert found == digest.hexdigest()
    place = f"MPT_MODELS_DIR/tiny, {' and '.join(patterns)} together"
    assert inputs.used() == {place: found}


def test_a_checkpoint_of_the_hub_has_the_digest_of_the_same_files(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is a commit in the cache of the hub, so no network is needed."""
    commit = "0123456789abcdef" * 2 + "01234567"
    shutil.copytree(models / "tiny", tmp_path / f"cache/models--lab--tiny/snapshots/{commit}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    of_hub = PretrainedSource.of(model(checkpoint="lab/tiny", revision=commit))
    assert of_hub.digest(weights=True) == PretrainedSource.of(model()).digest(weights=True)


def test_random_weights_depend_on_the_seed(models: Path) -> None:
    source = PretrainedSource.of(model())
    first, again, other = (
        network_of(model(init="random"), source.tokenizer(), seed) for seed in (4, 4, 5)
    )
    expected = fresh(source.config(), generator_for(4, "init").initial_seed())
    for name, value in expected.state_dict().items():
        assert torch.equal(first.state_dict()[name], value), name
        assert torch.equal(again.state_dict()[name], value), name
    changed = [not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(),
                                                     strict=True)]  # fmt: skip
    assert any(changed)


def run_of(**data: Any) -> MaskedLmRun:
    spec = spec_of({**BASE, "data": {**BASE["data"], **data}, "train": {"steps": 2}})
    assert isinstance(spec, MaskedLmExperiment)
    return MaskedLmRun(spec, RunState(), CPU, torch.float32)


def test_heldout_sequences_depend_on_the_seed_and_are_never_all() -> None:
    whole = corpus_of(tiny_lm.lines(10))
    trained_on, scored = run_of(heldout=0.3, seed=5)._split(whole)
    order = torch.randperm(10, generator=generator_for(5, "heldout"))
    assert torch.equal(scored.ids, whole.subset(order[:3].sort().values).ids)
    assert torch.equal(trained_on.ids, whole.subset(order[3:].sort().values).ids)
    two = corpus_of(tiny_lm.lines(2))
    for share in (0.01, 0.99):
        assert [len(part) for part in run_of(heldout=share)._split(two)] == [1, 1]
    all_of_it = run_of()._split(whole)
    assert all_of_it[0] is all_of_it[1] is whole


def test_one_sequence_cannot_be_held_out() -> None:
    with pytest.raises(RunError) as error:
        run_of(heldout=0.5)._split(corpus_of(tiny_lm.lines(1)))
    assert str(error.value) == "data.heldout needs two sequences or more; the text has one"
    assert error.value.cause == "invalid"


def test_a_subset_of_texts_depends_on_the_seed_and_keeps_its_order() -> None:
    lines = tiny_lm.lines(12)
    spec = PlainText.model_validate({"source": "text", "lines": lines, "n": 5, "seed": 3})
    found = corpus.read(spec, tiny_lm.tokenizer(), 40)
    order = torch.randperm(12, generator=generator_for(3, "texts"))[:5].sort().values.tolist()
    assert torch.equal(found.ids, corpus_of([lines[i] for i in order]).ids)
    every = corpus.read(spec.model_copy(update={"n": 12}), tiny_lm.tokenizer(), 40)
    assert torch.equal(every.ids, corpus_of(lines).ids)
    assert json.dumps([row[0] for row in texts(spec)]) == json.dumps(lines)


def test_a_text_without_tokens_has_no_score() -> None:
    with pytest.raises(RunError) as error:
        corpus_of(["[SEP]", "[CLS] [SEP]"])
    assert str(error.value) == (
        "the text gives nothing to score: none of the 2 sequences has a token that can be masked"
    )
    assert corpus_of(["cat"]).sizes.tolist() == [1]


def test_a_text_is_described_by_its_scored_tokens() -> None:
    text = corpus_of(["[SEP]", "the cat sat", "a red dog ran"])
    whole = "2 sequences, 7 tokens that can be masked"
    left_out = "1 sequences without one were left out"
    assert _description(text, 40, 40) == f"{whole}; {left_out}"
    shorter = "the model takes 39 tokens, not max_length 40"
    assert _description(text, 40, 39) == f"{whole}; {left_out}; {shorter}"
    assert _description(corpus_of(["a red dog ran"]), 40, 41) == (
        "1 sequences, 4 tokens that can be masked"
    )


@pytest.mark.parametrize(("size", "fits"), [(15, True), (14, False), (4, False)])
def test_a_checkpoint_with_fewer_weights_than_tokens_is_refused(size: int, fits: bool) -> None:
    """Tokens up to number 14 are in the text, and the mask token is number 4."""
    text = corpus_of(tiny_lm.lines(30))
    assert (int(text.ids.max()), tiny_lm.tokenizer().mask_token_id) == (14, 4)
    networks: Any = {"model": SimpleNamespace(config=SimpleNamespace(vocab_size=size))}
    if fits:
        _check_vocabularies(run_of().spec, networks, tiny_lm.tokenizer(), text)
        return
    with pytest.raises(RunError) as error:
        _check_vocabularies(run_of().spec, networks, tiny_lm.tokenizer(), text)
    why = f"its tokenizer has more tokens than its {size} weights"
    assert str(error.value) == f"the model's checkpoint does not fit: {why}"
    assert error.value.cause == "invalid"


def test_a_checkpoint_that_was_taken_to_the_store_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "mine-1").mkdir(parents=True)
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    source = PretrainedSource.of(MaskedLmModel(family="masked_lm", checkpoint="mine-1"))
    assert source.location == str(tmp_path / "models" / "mine-1")
    assert source._folder_name == "MPT_STORE/models/mine-1"

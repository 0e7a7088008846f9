"""Whole runs on language models: their records, resumed and undisturbed, and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mptcore.families.masked_lm import corpus
from mptcore.families.masked_lm.checkpoints import MASKED_LMS
from mptcore.families.masked_lm.trainer import MaskedLmTrainer
from mptcore.protocol.records import Artifact, Checkpoint, Log, Metric, Progress, Record, RunError
from mptcore.run import resumable, run
from mptcore.runtime.state import RunState
from mptlab_contract import records
from tests.support import tiny_lm
from tests.support.lm_specs import BASE, FRESH, TRAIN, with_data, with_model
from tests.support.runs import metric, points, spec_of, value_of

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
}
SPECS: dict[str, dict[str, Any]] = {
    "curve": {**BASE, "baseline": {**FRESH, "architecture": SMALL}, "seeds": [4, 44]},
    "orders": {**BASE, "evaluate": {**BASE["evaluate"], "orders": 3, "pll": True, "sequences": 9}},
    "target": {**BASE, "evaluate": {**BASE["evaluate"], "target_std_err": 0.4}},
    "bert": {**BASE, "model": {**BASE["model"], "corruption": "bert"}},
    "training": {**BASE, "model": FRESH, "train": TRAIN, "data": {**BASE["data"], "heldout": 0.3}},
}


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of checkpoints, with the one `tiny`."""
    folder = tmp_path / "models"
    tiny_lm.checkpoint(folder / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(folder))
    monkeypatch.setenv("MPT_STORE", str(tmp_path / "store"))
    return folder


def the_value(found: list[Record], name: str, **labels: Any) -> float:
    return value_of(metric(found, name, **labels))


def ran(value: dict[str, Any], work_dir: Path | None = None) -> list[Record]:
    state = RunState(work_dir=work_dir)
    found = []
    for record in resumable(spec_of(value), state):
        if record is not None:
            state.seq += not isinstance(record, Progress)
            found.append(record)
    return found


@pytest.mark.parametrize("name", SPECS)
def test_resumed_records_are_those_of_an_undisturbed_run(name: str, tmp_path: Path) -> None:
    spec = spec_of(SPECS[name])
    whole = records(spec, tmp_path / "whole")
    assert whole == records(spec, tmp_path / "again")
    for i, stop_after in enumerate(range(1, len(whole), max(1, len(whole) // 3))):
        folder = tmp_path / str(i)
        first = records(spec, folder, stop_after)
        assert first + records(spec, folder) == whole


def test_a_resumed_training_continues_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, step = spec_of(SPECS["training"]), MaskedLmTrainer.step
    steps: list[int] = []

    def counted(trainer: MaskedLmTrainer) -> float:
        steps.append(trainer.epoch)
        return step(trainer)

    monkeypatch.setattr(MaskedLmTrainer, "step", counted)
    records(spec, tmp_path, len(records(spec, tmp_path / "whole")) // 2)
    undisturbed = [*range(12)]
    assert steps[: len(undisturbed)] == undisturbed
    assert 0 < steps[-1] < undisturbed[-1]
    records(spec, tmp_path)
    assert steps == 2 * undisturbed


def test_records_describe_the_model(tmp_path: Path) -> None:
    found = ran(SPECS["curve"])
    said = " ".join(r.message for r in found if isinstance(r, Log))
    assert "model: tiny, pretrained, files sha256" in said
    assert "30 sequences" in said
    assert len(points(found, "score_by_rate")) == 2 * 2 * 4
    assert len(points(found, "score_difference")) == 2 * 4


def test_training_learns_and_saves_its_weights(tmp_path: Path) -> None:
    """Text in which every word is the same is learned in a few steps; the weights that are kept
    give the scores that the training ended with."""
    same = {"source": "text", "lines": ["cat cat cat cat"] * 20, "heldout": 0.5}
    train = {**TRAIN, "steps": 60, "curve_at": [0, 60], "evaluate_every": 20}
    value = {**BASE, "model": FRESH, "data": same, "train": train}
    found = ran(value, tmp_path / "store" / "artifacts" / "first")
    areas = [the_value(found, "area", step=0), the_value(found, "area", step=60)]
    assert areas[0] < -15 < areas[1]
    losses = [value_of(p) for p in points(found, "loss_heldout")]
    assert losses[-1] < 0.5 < losses[0]
    assert [p.x for p in points(found, "loss")] == [0, 20, 40]
    assert any(isinstance(r, Artifact) and r.file == "weights.safetensors" for r in found)
    *_, progress = (r for r in found if isinstance(r, Progress))
    assert progress.done == progress.total
    (end,) = (
        r.value
        for r in found
        if isinstance(r, Metric) and r.name == "area" and set(r.labels) == {"seed"}
    )
    model = {**BASE["model"], "init": "experiment", "experiment": "first"}
    again = ran({**BASE, "model": model, "data": {**same, "heldout": None}})
    assert the_value(again, "area") == pytest.approx(end, abs=0.02)


@pytest.mark.parametrize(
    "masks",
    [
        {"schedule": "fixed", "rate": 0.15},
        {"schedule": "uniform"},
        {"schedule": "ramp", "start": 0.1, "end": 0.9},
        {"schedule": "rates", "rates": [0.15, 0.5]},
    ],
)
def test_every_schedule_trains(masks: dict[str, Any]) -> None:
    found = ran({**SPECS["training"], "train": {**TRAIN, "masks": masks, "curve_at": []}})
    losses = [p.value for p in points(found, "loss")]
    assert len(losses) == 3
    assert all(loss is not None for loss in losses)


def test_the_memory_for_a_batch_changes_no_score() -> None:
    small = ran({**BASE, "compute": {"threads": 1, "memory_mib": 1}})
    large = ran({**BASE, "compute": {"threads": 1, "memory_mib": 512}})
    assert the_value(small, "area") == pytest.approx(the_value(large, "area"), abs=1e-4)


def test_blocks_pack_all_texts(tmp_path: Path) -> None:
    data = {**BASE["data"], "packing": "blocks", "max_length": 20}
    found = ran({**BASE, "data": data})
    words = sum(len(line.split()) for line in tiny_lm.lines(30))
    said = next(r.message for r in found if isinstance(r, Log) and "sequences," in r.message)
    assert f" {words} tokens" in said


def group_texts(columns: dict[str, list[list[int]]], block_size: int) -> dict[str, list[list[int]]]:
    """Group texts as run_mlm.py of transformers does, but keep the rest."""
    joined = {k: [x for one in column for x in one] for k, column in columns.items()}
    total = len(joined["input_ids"])
    return {
        k: [column[i : i + block_size] for i in range(0, total, block_size)]
        for k, column in joined.items()
    }


@pytest.mark.parametrize("pairs", [False, True])
def test_blocks_are_those_of_group_texts(pairs: bool) -> None:
    texts = list(zip(*[tiny_lm.lines(30, seed) for seed in range(1 + pairs)], strict=True))
    encoded = tiny_lm.tokenizer()(*[list(column) for column in zip(*texts, strict=True)])
    expected = group_texts(dict(encoded), 20)
    found = corpus._blocks(texts, tiny_lm.tokenizer(), 20)
    assert [one.ids for one in found] == expected["input_ids"]
    words = sum(len(text.split()) for row in texts for text in row)
    assert sum(sum(one.maskable) for one in found) == words


def test_unknown_words_are_text_and_only_the_frame_is_special() -> None:
    """They are masked and counted; [CLS] and [SEP] are not."""
    (one,) = corpus._sentences([("the zebra sat",)], tiny_lm.tokenizer(), 40)
    assert tiny_lm.tokenizer().convert_ids_to_tokens(one.ids)[2] == "[UNK]"
    assert one.maskable == [False, True, True, True, False]


def test_cut_sequences_are_counted_in_the_log() -> None:
    lines = ["the cat sat", "the old dog ran on a red mat", "a cat sat on a mat", "cat"]
    for max_length, cut in ((7, 2), (8, 1), (10, 0)):
        found = ran({**BASE, "data": {"source": "text", "lines": lines, "max_length": max_length}})
        assert the_value(found, "sequences_cut") == cut
        warnings = [r.message for r in found if isinstance(r, Log) and r.level == "warning"]
        cuts = [message for message in warnings if " texts were cut at " in message]
        assert [message.split(";")[0] for message in cuts] == (
            [f"{cut} of 4 texts were cut at {max_length} tokens"] if cut else []
        )
        rows = [(line,) for line in lines]
        sequences = corpus._sentences(rows, tiny_lm.tokenizer(), max_length)
        assert max(len(one.ids) for one in sequences) == max_length


def test_packed_texts_are_not_cut() -> None:
    data = {**BASE["data"], "packing": "blocks", "max_length": 7}
    assert the_value(ran({**BASE, "data": data}), "sequences_cut") == 0


def test_the_area_is_recorded_with_its_coverage_of_the_axis() -> None:
    found = ran({**SPECS["curve"], "seeds": [4]})
    assert the_value(found, "area_width") == pytest.approx(0.8)  # 0 to 0.8, by rates 0.2 apart
    target = {**BASE["evaluate"], "target_std_err": 0.4}
    assert the_value(ran({**BASE, "evaluate": target}), "area_width") == pytest.approx(0.8)


def test_the_final_weights_contain_no_optimizer(tmp_path: Path) -> None:
    assert not [r for r in ran(SPECS["training"]) if isinstance(r, Checkpoint)]
    spec = spec_of(SPECS["training"])
    whole = records(spec, tmp_path / "whole")
    cut = next(i for i, line in enumerate(whole) if '"artifact"' in line or "not kept" in line)
    first = records(spec, tmp_path / "part", cut + 2)
    (file,) = (tmp_path / "part").glob("*.safetensors")
    assert not [name for name in load_file(file) if "optimizer/" in name]
    assert first + records(spec, tmp_path / "part") == whole


def refused(value: dict[str, Any]) -> str:
    with pytest.raises(RunError) as caught:
        ran(value)
    assert caught.value.cause == "invalid"
    return str(caught.value)


def test_an_unknown_checkpoint_is_refused_with_advice() -> None:
    message = refused(with_model(checkpoint="nobody/knows-this"))
    assert "the checkpoint nobody/knows-this cannot be used" in message
    cure = ": put it into the folder MPT_MODELS_DIR, or let this machine reach the hub ("
    assert cure in message


def test_a_model_without_a_head_is_refused(models: Path) -> None:
    tiny_lm.network().base_model.save_pretrained(models / "headless")
    tiny_lm.tokenizer().save_pretrained(models / "headless")
    message = refused(with_model(checkpoint="headless"))
    assert "lacks the weights of a masked-language head" in message
    assert "would be random" in message


def test_unsafe_weights_are_refused(models: Path) -> None:
    shutil.copytree(models / "tiny", models / "pickled")
    (models / "pickled" / "model.safetensors").unlink()
    torch.save(tiny_lm.network().state_dict(), models / "pickled" / "pytorch_model.bin")
    assert "weights in safetensors could not be read" in refused(with_model(checkpoint="pickled"))


def test_broken_weights_are_refused(models: Path) -> None:
    shutil.copytree(models / "tiny", models / "broken")
    file = models / "broken" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    assert "cannot be used" in refused(with_model(checkpoint="broken"))
    tensors = {"bert.embeddings.word_embeddings.weight": torch.zeros(3, 3)}
    save_file(tensors, file, {"format": "pt"})
    assert "cannot be used" in refused(with_model(checkpoint="broken"))


@pytest.mark.parametrize("kind", sorted(MASKED_LMS))
@pytest.mark.parametrize("init", ["pretrained", "random"])
def test_a_config_with_too_many_layers_is_refused_before_the_model_is_built(
    models: Path, monkeypatch: pytest.MonkeyPatch, kind: str, init: str
) -> None:
    """A hundred thousand layers take hours to build. Those of ALBERT share their weights."""
    declare(tiny_lm.checkpoint(models / "deep", kind), "num_hidden_layers", 100_000)
    monkeypatch.setattr(torch.nn.Module, "__init__", None)
    message = refused(with_model(checkpoint="deep", init=init))
    assert "its config.json declares 100000 layers; at most 256 are computed" in message


@pytest.mark.parametrize("kind", sorted(MASKED_LMS))
@pytest.mark.parametrize(
    ("name", "value"),
    [("num_hidden_layers", 30), ("hidden_size", 4096), ("vocab_size", 10_000_000)],
)
def test_a_config_that_declares_more_than_the_weights_is_refused_before_the_model_is_built(
    models: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, value: int
) -> None:
    name = "num_hidden_groups" if (kind, name) == ("albert", "num_hidden_layers") else name
    declare(tiny_lm.checkpoint(models / "large", kind), name, value)
    monkeypatch.setattr(torch.nn.Module, "__init__", None)
    message = refused(with_model(checkpoint="large"))
    assert "cannot be used: its config.json declares" in message
    assert "one of the files is another model's" in message


def declare(checkpoint: Path, name: str, value: int) -> None:
    """Change a size in the config.json of a checkpoint."""
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    sizes = json.loads((checkpoint / "config.json").read_text())
    sizes.pop("layer_types", None)  # ModernBERT's, one for each layer
    sizes[config.attribute_map.get(name, name)] = value
    (checkpoint / "config.json").write_text(json.dumps(sizes))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", ""),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"added_tokens": [], "model": {"type": "unheard of"}}'),
        ("tokenizer_config.json", "{"),
        ("config.json", "{"),
        ("config.json", '{"model_type": "bert", "num_hidden_layers": "many"}'),
    ],
)
def test_a_damaged_file_is_named_as_the_reason(models: Path, file: str, content: str) -> None:
    """The checkpoint is in MPT_MODELS_DIR: to put it there is no help."""
    shutil.copytree(models / "tiny", models / "damaged")
    (models / "damaged" / file).write_text(content)
    message = refused(with_model(checkpoint="damaged"))
    assert "from its folder, MPT_MODELS_DIR/damaged: a file is missing or damaged (" in message
    assert "put it into" not in message


def test_another_kind_of_model_and_remote_code_are_refused(models: Path) -> None:
    for name, config in (
        ("decoder", {"model_type": "gpt2"}),
        ("unheard", {"model_type": "unheard_of"}),
        ("remote", {"model_type": "own", "auto_map": {"AutoConfig": "evil.Config"}}),
    ):
        shutil.copytree(models / "tiny", models / name)
        (models / name / "config.json").write_text(json.dumps(config))
        (models / name / "evil.py").write_text("raise SystemExit('ran remote code')")
        message = refused(with_model(checkpoint=name))
        assert "cannot be used" in message or "supported types are" in message


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mdlm", "auto_map": {"AutoConfig": "own.Config"}}, "contains custom code"),
        ({"model_type": "bert", "auto_map": {"AutoModel": "own.Model"}}, "has code of its own"),
        ({"model_type": "llada"}, "has model type `llada` but Transformers does not recognize"),
    ],
)
def test_a_diffusion_model_with_another_network_is_refused_with_its_reason(
    models: Path, config: dict[str, Any], reason: str
) -> None:
    """Models with the step as an input have a type of their own, with or without code."""
    shutil.copytree(models / "tiny", models / "diffusion")
    (models / "diffusion" / "config.json").write_text(json.dumps(config))
    assert reason in refused(with_model(checkpoint="diffusion"))


def test_a_tokenizer_without_a_mask_token_is_refused(models: Path) -> None:
    shutil.copytree(models / "tiny", models / "unmasked")
    bare = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tiny_lm.tokenizer().backend_tokenizer, unk_token="[UNK]"
    )
    bare.save_pretrained(models / "unmasked")
    assert "without a mask token" in refused(with_model(checkpoint="unmasked"))


def test_text_without_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gives nothing to score" in refused(with_data(lines=["[SEP]", "[CLS]"]))
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    assert "there is no text a.txt" in refused(with_data(file="a.txt"))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refused(with_data(file="a.txt"))
    (tmp_path / "text" / "a.txt").write_text("\n\n")
    assert "no text in it" in refused(with_data(file="a.txt"))
    monkeypatch.delenv("MPT_DATA_DIR")
    assert "MPT_DATA_DIR" in refused(with_data(file="a.txt"))


def test_texts_without_a_token_are_counted() -> None:
    found = ran(with_data(lines=["[SEP]", "cat", "a red dog"]))
    assert any(isinstance(r, Log) and "1 sequences without one" in r.message for r in found)
    assert value_of(metric(found, "sequences_left_out")) == 1


def test_texts_of_one_token_are_scored() -> None:
    """Only the size 1 is scored: the pseudo-log-likelihood of four texts is the mean over the
    texts. Their area at one rate is the sum of log probabilities over the number of masked
    tokens."""
    lines = ["cat", "dog", "a red dog", "the cat sat"]
    evaluate = {"masks": {"rates": [1.0]}, "dimensions": 10, "pll": True, "orders": 1}

    def of(lines: list[str], name: str) -> float:
        return value_of(metric(ran({**with_data(lines=lines), "evaluate": evaluate}), name))

    for name in ("pll", "cumulative"):
        alone = [of([line], name) for line in lines[:2]]
        assert of(lines[:2], name) == pytest.approx(sum(alone) / 2, abs=1e-4)
    each = [of([line], "pll") for line in lines]
    assert of(lines, "pll") == pytest.approx(sum(each) / 4, abs=1e-4)
    areas = [of([line], "area") * tokens for line, tokens in zip(lines, (1, 1, 3, 3), strict=True)]
    assert of(lines, "area") == pytest.approx(sum(areas) / 8, abs=1e-4)


def test_glue_is_read_from_its_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    glue = {"source": "glue", "subset": "mrpc", "split": "validation"}
    assert "reach the hub" in refused({**BASE, "data": glue})
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    pairs = list(zip(tiny_lm.lines(5), tiny_lm.lines(5, 1), strict=True))
    rows = [{"sentence1": a, "sentence2": b, "label": 1, "idx": 0} for a, b in pairs]
    (tmp_path / "glue" / "mrpc").mkdir(parents=True)
    file = tmp_path / "glue" / "mrpc" / "validation.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    found = ran({**BASE, "data": glue})
    words = sum(len(text.split()) for pair in pairs for text in pair)
    assert any(isinstance(r, Log) and f"5 sequences, {words} tokens" in r.message for r in found)


def test_a_baseline_of_another_vocabulary_is_refused(models: Path) -> None:
    tiny_lm.network(words=["x", "y"]).save_pretrained(models / "other")
    tiny_lm.tokenizer(["x", "y"]).save_pretrained(models / "other")
    other = {"family": "masked_lm", "checkpoint": "other"}
    told = "another tokenizer: score differences need models with the same vocabulary"
    assert told in refused({**BASE, "baseline": other})


def test_training_that_diverges_keeps_its_records() -> None:
    train = {**TRAIN, "steps": 400, "learning_rate": 1.0, "max_grad_norm": 1e6, "warmup_steps": 0}
    spec = {**SPECS["training"], "train": {**train, "evaluate_every": 1, "curve_at": []}}
    found: list[Record] = []
    with pytest.raises(RunError, match="lower learning_rate") as caught:
        found.extend(run(spec_of({**spec, "model": {**FRESH, "checkpoint": "huge"}})))
    assert caught.value.cause == "error"
    assert points(found, "loss")


@pytest.fixture(autouse=True)
def huge(models: Path) -> None:
    """A checkpoint whose first loss is finite, and whose weights then overflow."""
    tiny_lm.checkpoint(models / "huge")
    config = json.loads((models / "huge" / "config.json").read_text())
    config["initializer_range"] = 1e30
    (models / "huge" / "config.json").write_text(json.dumps(config))


def test_a_single_sequence_has_no_error() -> None:
    """A single mask gives no variance over masks, and a single order gives none over orders."""
    spec = with_data(lines=["the cat sat on a mat"])
    found = ran({**spec, "evaluate": {**BASE["evaluate"], "orders": 1}})
    assert all(p.std_err is None and p.reason for p in points(found, "score_by_rate"))
    assert metric(found, "cumulative").reason == "one draw gives no standard error"
    assert the_value(found, "area") < 0


def test_a_corruption_that_masks_nothing_is_refused() -> None:
    bert = {**with_data(lines=["the cat sat"]), "model": {**BASE["model"], "corruption": "bert"}}
    message = refused({**bert, "evaluate": {"masks": {"rates": [0.001, 0.002]}}})
    assert "no token was drawn: raise per_size or n" in message


def test_a_local_checkpoint_has_no_revision(models: Path) -> None:
    assert "no revisions" in refused(with_model(revision="main"))


def test_a_folder_in_the_working_directory_is_not_a_checkpoint(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_lm.checkpoint(tmp_path / "here" / "beside")
    monkeypatch.chdir(tmp_path)
    assert "not an id of the hub" in refused(with_model(checkpoint="here/beside"))


def test_weights_are_saved_with_their_tokenizer(models: Path, tmp_path: Path) -> None:
    ran(SPECS["training"], tmp_path / "store" / "artifacts" / "first")
    tiny_lm.network(words=["x", "y"]).save_pretrained(models / "other")
    tiny_lm.tokenizer(["x", "y"]).save_pretrained(models / "other")
    assert "another tokenizer" in refused(
        with_model(checkpoint="other", init="experiment", experiment="first")
    )


def test_a_column_of_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    (tmp_path / "text").mkdir()
    row = {"id": "cat cat cat", "body": "the old dog ran"}
    (tmp_path / "text" / "a.jsonl").write_text(json.dumps(row))
    found = ran(with_data(file="a.jsonl", column="body"))
    assert any(isinstance(r, Log) and "1 sequences, 4 tokens" in r.message for r in found)
    assert "no column of text text; it has id, body" in refused(with_data(file="a.jsonl"))

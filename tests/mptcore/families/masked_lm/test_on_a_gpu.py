"""Kernels, synchronizations and copies of language models on a simulated GPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.families.masked_lm import curve, packing
from mptcore.families.masked_lm import network as lm
from mptcore.families.masked_lm.checkpoints import MASKED_LMS
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.packing import Row
from mptcore.families.masked_lm.trainer import MaskedLmTrainer
from mptcore.runtime.state import RunState
from mptcore.specs import MaskedLmEvaluate, MaskedLmTrain, RateMasks
from mptlab_contract import records
from mptlab_contract.pretended_gpu import DEVICE, GIB, pretended_gpu
from tests.support import tiny_lm
from tests.support.runs import spec_of
from tests.support.texts import corpus_of, scores_of

CPU = torch.device("cpu")
WITHOUT_DROPOUT: dict[str, Any] = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def language_model() -> MaskedLm:
    return MaskedLm(tiny_lm.network(), DEVICE, torch.float32)


def sequences(count: int) -> MaskedBatch:
    """Masked sequences of one length."""
    masker = Masker(corpus_of(["the cat sat on a red mat"] * count), 4, 15)
    rates = torch.full((count,), 0.4, dtype=torch.float64)
    return masker.at_rates(torch.arange(count), rates, torch.Generator().manual_seed(1))[0]


def test_a_batch_of_sequences() -> None:
    """With two layers, the sequences need one copy to the device and their order another one. The
    host waits only for the scores."""
    with pretended_gpu() as gpu:
        model = language_model()
        found = []
        for count in (4, 32):
            gpu.reset()
            scores_of({"model": model}, sequences(count))
            found.append(gpu.asked)
    assert found[0] == found[1]
    assert found[0]["launches"] <= 76
    assert found[0]["synchronisations"] == found[0]["to_host"] == 1
    assert found[0]["to_device"] == 2
    assert found[0]["waited"] == 0


@pytest.mark.parametrize("kind", MASKED_LMS)
def test_scores_in_bfloat16_are_those_of_a_cpu(kind: str) -> None:
    """Attention of all lengths is one launch in a layer, and the 15 words get a 16th that has no
    probability. ModernBERT's layers see all of a sequence or a window of it."""
    sizes: dict[str, Any] = {"scale": 3.0}
    if kind == "modernbert":
        sizes["local_attention"] = 4
    masker = Masker(corpus_of(tiny_lm.lines(20)), 4, 15)
    rates = torch.full((20,), 0.4, dtype=torch.float64)
    batch, _ = masker.at_rates(torch.arange(20), rates, torch.Generator().manual_seed(1))
    model = MaskedLm(tiny_lm.network(kind, **sizes), CPU, torch.bfloat16)
    expected = scores_of({"model": model}, batch)
    seen: list[torch.Size] = []
    own = packing._of_different_lengths

    def noted(tokens: list[Tensor], *given: Any) -> Tensor:
        seen.append(tokens[0].shape)
        return own(tokens, *given)

    with pretended_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_of_different_lengths", noted)
        on_gpu = MaskedLm(tiny_lm.network(kind, **sizes), DEVICE, torch.bfloat16)
        last = on_gpu.network.get_output_embeddings()
        assert len(last.weight) == (16 if last.bias is not None else 15)
        found = scores_of({"model": on_gpu}, batch)
    tokens = int(batch.lengths.sum())
    assert [shape[0] for shape in seen] == [tokens] * on_gpu.config.num_hidden_layers
    assert len(set(batch.lengths.tolist())) > 4
    torch.testing.assert_close(found, expected, rtol=0, atol=0.03)


def test_memory_counts_the_logits_of_the_filled_layer() -> None:
    """16 words, not 15."""
    with pretended_gpu():
        _, logits = language_model().bytes_of(sequences(1))
    assert int(logits) == 8 * 16 * 3


@pytest.mark.parametrize("at_once", [10, 1_000])
def test_a_batch_needs_no_tensor_of_all_its_logits(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten masked words at a time among 800: no tensor is larger than the vectors of 288 tokens in
    a layer. All at once do not fit."""
    monkeypatch.setattr(lm, "LOGITS_AT_ONCE", at_once * 800)
    words = [f"w{i}" for i in range(795)]  # and five special tokens
    with pretended_gpu() as gpu:
        model = MaskedLm(tiny_lm.network(words=words), DEVICE, torch.float32)
        masks = sequences(32)
        gpu.most_numbers = 800 * model.config.hidden_size
        assert gpu.most_numbers >= int(masks.lengths.sum()) * model.config.intermediate_size
        scores_of({"model": model}, masks)
    assert (gpu.refused == 0) == (at_once == 10)


@pytest.mark.parametrize(
    ("device", "dtype", "width", "heads", "has"),
    [
        (DEVICE, torch.bfloat16, 16, 2, True),
        (DEVICE, torch.bfloat16, 512, 2, True),
        (DEVICE, torch.bfloat16, 528, 2, False),
        (DEVICE, torch.bfloat16, 24, 2, False),
        (DEVICE, torch.float32, 16, 2, False),
        (CPU, torch.bfloat16, 16, 2, False),
    ],
)
def test_which_gpus_have_the_kernel_for_all_lengths(
    device: torch.device, dtype: torch.dtype, width: int, heads: int, has: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Heads are as wide as a multiple of 8 up to 256, and older GPUs have no bfloat16."""
    config = SimpleNamespace(hidden_size=width, num_attention_heads=heads)
    with pretended_gpu():
        assert packing.has_kernel(device, dtype, config) == has
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: (
            including_emulation))  # fmt: skip
        assert not packing.has_kernel(device, dtype, config)


def test_a_gradient_is_computed_in_groups() -> None:
    """Trained weights in float32 are computed in bfloat16 too; their scores use the kernel."""
    with pretended_gpu():
        trained = MaskedLm(tiny_lm.network(), DEVICE, torch.bfloat16, trained=True)
        assert trained._row(sequences(4)).ends is None
        with torch.no_grad():
            ends = trained._row(sequences(4)).ends
            assert ends is not None
            assert ends.tolist() == [0, 9, 18, 27, 36]
        exact = MaskedLm(tiny_lm.network(), DEVICE, torch.float32, trained=True)
        with torch.no_grad():
            assert exact._row(sequences(4)).ends is None


@pytest.mark.parametrize("models", [1, 2])
def test_the_scores_of_many_parts_are_fetched_once(models: int) -> None:
    """The host draws the next masks while the device is busy."""
    masker = Masker(corpus_of(tiny_lm.lines(40)), 4, 15)
    rates = torch.full((40,), 0.4, dtype=torch.float64)
    batch, _ = masker.at_rates(torch.arange(40), rates, torch.Generator().manual_seed(1))
    with pretended_gpu() as gpu:
        made = [MaskedLm(tiny_lm.network(), DEVICE, torch.float32, 40_000) for _ in range(models)]
        parts = len(list(made[0].parts(batch)))
        gpu.reset()
        begun: list[int] = []

        def meanwhile() -> None:
            assert gpu.synchronisations == 0
            begun.append(gpu.launches)

        found = scores_of(dict(zip("ab", made, strict=False)), batch, meanwhile)
    assert parts > 4
    assert begun[0] > 40 * parts * models
    assert gpu.synchronisations == gpu.to_host == 1
    assert gpu.to_device == models * (parts + 1)
    assert gpu.waited == 0
    assert found.shape == (models, 2, 40)


@pytest.mark.parametrize("target", [None, 20.0])
def test_the_next_masks_are_drawn_while_the_device_has_work(
    target: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a curve, and a round of masks with a target."""
    monkeypatch.setattr(curve, "CHUNK_TOKENS", 200)
    spec = MaskedLmEvaluate(
        masks=RateMasks(rates=(0.2, 0.5)), target_std_err=target, dimensions=10, max_masks=100
    )
    masker = Masker(corpus_of(tiny_lm.lines(60)), 4, 15)
    fetched: list[int] = []
    draw = Masker.at_rates

    def noted(masker: Masker, *given: Any) -> tuple[MaskedBatch, Tensor]:
        fetched.append(gpu.to_host)
        return draw(masker, *given)

    monkeypatch.setattr(Masker, "at_rates", noted)
    with pretended_gpu() as gpu:
        models = {"model": language_model()}
        text = curve.CorpusEvaluation(spec, models, masker, {"seed": 1}, RunState())
        gpu.reset()
        for _ in text.records(torch.Generator().manual_seed(1)):
            pass
    assert fetched[:3] == [0, 0, 1]
    assert gpu.to_host == len(fetched)


def computed_in(found: Tensor) -> torch.dtype:
    """Autocasts are asked for; they pass by the tensors of a pretended GPU."""
    autocast = torch.is_autocast_enabled("cuda")
    return torch.get_autocast_dtype("cuda") if autocast else found.dtype


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_a_language_model_on_a_gpu_uses_bfloat16_by_default(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and products; weights that are trained stay in float32."""
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))
    made: list[tuple[torch.dtype, torch.dtype]] = []
    own = MaskedLm._log_probs

    def noted(model: MaskedLm, row: Row) -> Tensor:
        seen: list[torch.dtype] = []
        first = next(m for m in model.network.modules() if isinstance(m, torch.nn.Linear))
        hook = first.register_forward_hook(lambda *given: seen.append(computed_in(given[-1])))
        found = own(model, row)
        hook.remove()
        made.append((first.weight.dtype, seen[0]))
        assert found.dtype == torch.float32
        return found

    monkeypatch.setattr(MaskedLm, "_log_probs", noted)
    spec: dict[str, Any] = {
        "model": {"family": "masked_lm", "checkpoint": "tiny"},
        "data": {"source": "text", "lines": tiny_lm.lines(6)},
        "evaluate": {"masks": {"schedule": "rates", "rates": [0.5]}, "dimensions": 10},
        "compute": {"device": "cuda", "threads": 1, "precision": precision},
    }
    with pretended_gpu():
        (log, *_) = records(spec_of(spec), tmp_path / "evaluated")
        evaluated = set(made)
        made.clear()
        records(spec_of({**spec, "train": {"steps": 1, "batch_size": 4}}), tmp_path / "trained")
    computed = torch.bfloat16 if precision == "auto" else torch.float32
    assert f"{computed}".removeprefix("torch.") in log
    assert evaluated == {(computed, computed)}
    assert set(made) == {(torch.float32, computed)}


def trainer_of(count: int, device: torch.device = DEVICE, **sizes: Any) -> MaskedLmTrainer:
    spec = MaskedLmTrain(steps=4, batch_size=count, warmup_steps=1)
    model = MaskedLm(tiny_lm.network(**sizes), device, torch.float32, trained=True)
    return MaskedLmTrainer(spec, model, Masker(corpus_of(tiny_lm.lines(40)), 4, 15), None, 1)


def test_a_training_step_of_a_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 sentences of 5 to 11 tokens are one part, and the device is waited for once."""
    with pretended_gpu() as gpu:
        trainer = trainer_of(32)
        parts: list[Tensor] = []
        cut = trainer.model.parts

        def cut_and_kept(masks: MaskedBatch) -> list[Tensor]:
            parts[:] = cut(masks)
            return parts

        monkeypatch.setattr(trainer.model, "parts", cut_and_kept)
        gpu.reset()
        trainer.advance()
        assert len(parts) == 1
        assert gpu.synchronisations == 1
        assert gpu.to_device == 2
        assert gpu.waited == 0
        assert gpu.launches <= 460  # 240 of the network, the rest of the gradient's norm
        assert gpu.forks == [DEVICE]  # and no other GPU's generator was used
        gpu.reset()
        trainer.adam.step()
        assert gpu.launches <= 4  # for the weights that decay, and for the others


def test_a_language_model_resumes_training_on_another_device() -> None:
    """Each device has a different optimizer: from a CPU to a GPU, and back."""
    moves = ((DEVICE, DEVICE, DEVICE), (CPU, DEVICE, CPU))
    found = []
    with pretended_gpu():
        for devices in moves:
            kept = None
            for step, device in enumerate(devices):
                trainer = trainer_of(8, device, **WITHOUT_DROPOUT)
                if kept is not None:
                    trainer.restore(kept)
                trainer.epoch = step
                loss = trainer.step()
                kept = {name: value.cpu() for name, value in trainer.tensors().items()}
            found.append(loss)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def gradients(trainer: MaskedLmTrainer) -> list[Tensor]:
    found = [p.grad for p in trainer.network.parameters()]
    return [one.cpu() for one in found if one is not None]


def test_a_step_with_too_little_memory_has_the_same_gradient() -> None:
    with pretended_gpu() as gpu:
        trainer = trainer_of(16, **WITHOUT_DROPOUT)
        expected = trainer.step()
        whole = gradients(trainer)
        gpu.most_numbers = 700  # all weights, and the layers of two or three sentences
        trainer = trainer_of(16, **WITHOUT_DROPOUT)
        assert trainer.step() == pytest.approx(expected, rel=1e-6)
        for found, other in zip(gradients(trainer), whole, strict=True):
            torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-6)
        assert gpu.refused > 0
        gpu.most_numbers = 100
        with pytest.raises(torch.OutOfMemoryError):
            trainer.step()


def test_training_with_too_little_memory_resumes_to_the_same_bits() -> None:
    """Dropout is drawn for each part, so a step is split as in an undisturbed run, although earlier
    steps and scores did not fit into memory."""
    with pretended_gpu() as gpu:
        gpu.most_numbers = 700
        undisturbed, resumed = trainer_of(16), trainer_of(16)
        undisturbed.advance()
        undisturbed.loss_on(sequences(32))
        resumed.restore({name: one.clone() for name, one in undisturbed.tensors().items()})
        resumed.epoch = undisturbed.epoch
        assert gpu.refused > 0
        losses = [[trainer.step() for _ in range(2)] for trainer in (undisturbed, resumed)]
        assert losses[0] == losses[1]
        found, expected = gradients(resumed), gradients(undisturbed)
    assert all(map(torch.equal, found, expected))


def test_creating_a_network_uses_no_gpu_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))
    spec = {
        "model": {"family": "masked_lm", "checkpoint": "tiny", "init": "random"},
        "data": {"source": "text", "lines": tiny_lm.lines(6)},
        "evaluate": {"masks": {"schedule": "rates", "rates": [0.5]}, "dimensions": 10},
        "compute": {"device": "cuda", "threads": 1},
    }
    with pretended_gpu() as gpu:
        records(spec_of(spec), tmp_path)
    assert gpu.forks == []


@pytest.mark.parametrize(
    ("gib", "scores", "training"),
    [(16, 0.3 * 16, 0.3 * 16), (22.2, 6.5, 0.3 * 22.2), (79.2, 6.5, 23), (180, 6.5, 23)],
)
def test_large_gpus_cut_the_same_parts(gib: float, scores: float, training: float) -> None:
    with pretended_gpu(int(gib * GIB)):
        for is_training, parts in ((False, scores), (True, training)):
            assert lm._part_bytes(torch.device("cuda"), is_training) == int(parts * GIB)


def test_scores_with_too_little_memory_are_the_same() -> None:
    with pretended_gpu() as gpu:
        model, found = language_model(), []
        for gpu.most_numbers in (None, 700):
            found.append(scores_of({"model": model}, sequences(8)))
    torch.testing.assert_close(found[1], found[0])


def test_a_batch_size_that_did_not_fit_is_not_tried_again() -> None:
    """The size is tried neither in the same batch nor in later ones."""
    with pretended_gpu() as gpu:
        model = {"model": language_model()}
        gpu.most_numbers = 700
        for _ in range(2):
            scores_of(model, sequences(32))
            assert gpu.refused == 4  # of 32, 16, 8 and 4 sequences

"""Checkpoints that neither the folders of a machine nor the hub have, and those that lack files."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mptcore.specs import validate_spec
from mptlab.serve import free_port
from service.app import create_app
from service.datasets import hub as hub_module
from service.datasets.hub import hub_answers
from service.experiments.inputs import LOCAL_CURE, OFFLINE, Inputs
from service.settings import Settings
from tests.support.callers import bearer
from tests.support.lm_specs import BASE

SPEC = {**BASE, "model": {"family": "masked_lm", "checkpoint": "my-ber"}}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """URL of a hub that does not answer, and no cached models."""
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", url)
    return url


class Unauthorized(BaseHTTPRequestHandler):
    """Answer of the hub about a model that it does not show."""

    def do_HEAD(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def answering(hub: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a hub that answers."""
    with HTTPServer(("127.0.0.1", 0), Unauthorized) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HF_ENDPOINT", url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield url
        server.shutdown()


def written(folder: Path, **changed: dict[str, Any] | bytes | None) -> Path:
    """Write the files of a checkpoint that are looked at, with changes by their stem; None is none.
    The tokenizer has the form of tokenizers that are saved by themselves."""
    tokens = {"tokenizer_class": "TokenizersBackend", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    files: dict[str, Any] = {
        "config.json": {"model_type": "bert"},
        "tokenizer.json": {},
        "tokenizer_config.json": tokens,
        "model.safetensors": b"weights",
    }
    folder.mkdir(parents=True)
    for name, content in files.items():
        content = changed.get(name.partition(".")[0], content)
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        elif content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder


def details(settings: Settings) -> list[str]:
    return [one.detail for one in Inputs(settings).problems(validate_spec(SPEC))]


def test_mpt_serve_refuses_a_checkpoint_that_no_run_could_load(
    settings: Settings, hub: str
) -> None:
    local = settings.model_copy(update={"embedded": "cpu"})
    for folder in ("my-bert-0123456789ab", ".copied"):
        (settings.store / "models" / folder).mkdir(parents=True)
    headers = bearer(settings.key_file.read_text().strip())
    with TestClient(create_app(local), headers=headers) as api:
        for path in ("/v1/experiments", "/v1/experiments:validate"):
            answer = api.post(path, json={"spec": SPEC})
            assert answer.status_code == 422
            (error,) = answer.json()["errors"]
            assert error["pointer"] == "/spec/model/checkpoint"
            for words in ("my-bert-0123456789ab", f"{hub}, cannot be reached", LOCAL_CURE):
                assert words in error["detail"]
    written(settings.store / "models" / "my-ber")
    assert details(local) == []


def test_a_lab_may_have_the_checkpoint_on_another_machine(
    settings: Settings, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert details(settings) == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert details(settings) == []


def test_a_checkpoint_that_a_run_may_load_is_accepted(
    settings: Settings, answering: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The hub answers, or its cache has it. A disabled hub is not asked."""
    local = settings.model_copy(update={"embedded": "cpu"})
    assert details(local) == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (told,) = details(local)
    assert OFFLINE in told
    (tmp_path / "hub" / "hub" / "models--my-ber").mkdir(parents=True)
    assert details(local) == []


def test_a_hub_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "ANSWER_S", 0.01)
    waits = threading.Event()
    monkeypatch.setattr(hub_module, "_answers", lambda url: waits.wait())
    assert not hub_answers("http://silent")
    waits.set()


def test_the_password_of_a_mirror_is_not_told(
    settings: Settings, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.experiments.inputs.hub_answers", lambda _: False)
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@mirror:80/x")
    (told,) = details(settings.model_copy(update={"embedded": "cpu"}))
    assert "the hub, http://mirror:80/x, cannot be reached" in told


NO_PAD = {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "<mask>"}
NO_MASK = {"tokenizer_class": "TokenizersBackend", "pad_token": {"content": "[PAD]"}}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 4\n"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": None}, "has no weights in safetensors: save_pretrained"),
        ({"model": LFS}, "has no weights in safetensors: model.safetensors is a pointer"),
        ({"tokenizer_config": NO_PAD}, "has a tokenizer without a pad token"),
        ({"tokenizer_config": NO_MASK}, "has a tokenizer without a mask token"),
        ({"tokenizer_config": {**NO_MASK, "tokenizer_class": "BertTokenizer", "mask_token": None}},
         "has a tokenizer without a mask token"),
        ({"tokenizer": None}, "has no tokenizer: save_pretrained"),
        ({"config": None}, "has no config.json, its architecture"),
        ({"config": b"{"}, "has no config.json, its architecture"),
        ({"config": {"model_type": "esm"}}, "is of type esm, but its config.json has no pad"),
        ({"config": {"model_type": "roberta", "pad_token_id": None}}, "is of type roberta"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_a_run_cannot_use_is_refused_by_name(
    settings: Settings, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    seen = settings.model_copy(update={"models_dir": tmp_path / "models"})
    written(tmp_path / "models" / "my-ber", **changed)
    (detail,) = details(seen)
    assert detail.startswith(f"the checkpoint my-ber {told}")
    headers = bearer(settings.key_file.read_text().strip())
    spec = {**SPEC, "baseline": SPEC["model"]}
    with TestClient(create_app(seen), headers=headers) as api:
        answer = api.post("/v1/experiments", json={"spec": spec})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": f"/spec/{part}/checkpoint", "detail": detail} for part in ("model", "baseline")
    ]


def test_all_parts_of_weights_are_needed_in_safetensors(settings: Settings, tmp_path: Path) -> None:
    seen = settings.model_copy(update={"models_dir": tmp_path / "models"})
    folder = written(tmp_path / "models" / "my-ber", model=None)
    (folder / "pytorch_model.bin").write_bytes(b"")
    (detail,) = details(seen)
    assert "only pytorch_model.bin, which is never read" in detail
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "model-1.safetensors").write_bytes(b"weights")
    (detail,) = details(seen)
    assert "lacks model-2.safetensors" in detail
    (folder / "model-2.safetensors").write_bytes(b"weights")
    assert details(seen) == []


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"tokenizer_config": {"tokenizer_class": "BertTokenizer"}},
        {"tokenizer_config": None},
        {"config": {"model_type": "roberta"}},
        {"config": {"model_type": "esm", "pad_token_id": 0}},
    ],
)
def test_a_checkpoint_whose_class_has_the_tokens_is_accepted(
    settings: Settings, tmp_path: Path, changed: dict[str, Any]
) -> None:
    seen = settings.model_copy(update={"models_dir": tmp_path / "models"})
    written(tmp_path / "models" / "my-ber", **changed)
    assert details(seen) == []


def test_special_tokens_may_be_in_a_file_of_their_own(settings: Settings, tmp_path: Path) -> None:
    seen = settings.model_copy(update={"models_dir": tmp_path / "models"})
    folder = written(tmp_path / "models" / "my-ber", tokenizer_config=NO_PAD)
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>"}))
    assert details(seen) == []


def test_random_weights_need_none_of_the_checkpoint(settings: Settings, tmp_path: Path) -> None:
    seen = settings.model_copy(update={"models_dir": tmp_path / "models"})
    written(tmp_path / "models" / "my-ber", model=None, config=None)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 12, "max_position_embeddings": 32}  # fmt: skip
    model = {**SPEC["model"], "init": "random"}
    (detail,) = [
        one.detail for one in Inputs(seen).problems(validate_spec({**SPEC, "model": model}))
    ]
    assert "has no config.json" in detail
    spec = validate_spec({**SPEC, "model": {**model, "architecture": sizes}})
    assert [*Inputs(seen).problems(spec)] == []


def test_presets_say_what_this_lab_has_and_lacks(
    settings: Settings, hub: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder without weights is no checkpoint that scores texts."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models = tmp_path / "models"
    written(models / "my-bert")
    written(models / "only-a-tokenizer", model=None)
    seen = settings.model_copy(update={"models_dir": models, "embedded": "cpu", "data_dir": None})
    headers = bearer(settings.key_file.read_text().strip())
    with TestClient(create_app(seen), headers=headers) as api:
        answer = api.get("/v1/presets").json()
        one = api.get("/v1/presets/coherence").json()
    assert answer["checkpoints"] == ["my-bert"]
    missing = {preset["name"]: preset["missing"] for preset in answer["items"]}
    assert missing["table1"] == {}
    assert "MPT_DATA_DIR, which is not set" in missing["fig3-linear-mnist"]["mnist"]
    assert set(missing["coherence"]) == {"nci_smiles.txt", "rxnfp-bert", "rxnmapper-albert"}
    assert one in answer["items"]

"""Masked language models and tokenizers of transformers: safetensors only, no remote code."""

import hashlib
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mptcore.data.vision import torchvision_datasets
from mptcore.records import RunError
from mptcore.specs import MaskedLmModel
from mptcore.streams import stream
from mptcore.weights import load_kept

torchvision_datasets()  # transformers imports torchvision where it is installed
transformers: Any = importlib.import_module("transformers")

MASKED_LMS = {
    "albert": "AlbertForMaskedLM",
    "bert": "BertForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "esm": "EsmForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
}
"""The class of each model_type that is run. A model may be added here whose base model gives hidden
states for each token, from which its head predicts each token by itself (tests/mptcore/text holds
each to plain transformers)."""

Tokenizer = Any
Network = Any
Config = Any


@dataclass(frozen=True)
class Checkpoint:
    """Where a checkpoint lies: a folder, or an id and revision of the hub."""

    name: str
    place: str
    revision: str | None

    @classmethod
    def of(cls, spec: MaskedLmModel) -> "Checkpoint":
        """The folder of that name in MPT_MODELS_DIR where there is one, else the hub."""
        folder = os.environ.get("MPT_MODELS_DIR")
        local = Path(folder, spec.checkpoint) if folder else None
        if local is not None and local.is_dir():
            return cls(spec.checkpoint, str(local), None)
        return cls(spec.checkpoint, spec.checkpoint, spec.revision)

    def tokenizer(self) -> Tokenizer:
        """Its fast tokenizer, which has a mask token. Raises RunError."""
        found = self._read(transformers.AutoTokenizer.from_pretrained, "a tokenizer")
        if not getattr(found, "is_fast", False):
            raise self._refusal("has no tokenizer.json, the form that tokenizers reads")
        if found.mask_token_id is None:
            raise self._refusal("has a tokenizer without a mask token: it is no masked model")
        return found

    def config(self) -> Config:
        """Its architecture, which is one of those that are run. Raises RunError."""
        found = self._read(transformers.AutoConfig.from_pretrained, "a config.json")
        if found.model_type not in MASKED_LMS:
            known = ", ".join(MASKED_LMS)
            raise self._refusal(f"is a {found.model_type}; those that are run are {known}")
        return found

    def pretrained(self, config: Config) -> Network:
        """Its network with its weights, the head's included. Raises RunError."""
        load = getattr(transformers, MASKED_LMS[config.model_type]).from_pretrained
        options = {"config": config, "use_safetensors": True, "output_loading_info": True}
        network, loaded = self._read(load, "weights in safetensors", **options, dtype=torch.float32)
        if missing := sorted(loaded["missing_keys"]):
            detail = f"lacks the weights of a masked-language head ({missing[0]}, …)"
            raise self._refusal(f"{detail}, which would be random: use another checkpoint")
        return network

    def digest(self) -> str:
        """The SHA-256 over its files, by name, that are read for a run."""
        names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
        digest = hashlib.sha256()
        for name in names:
            if (path := self._file(name)) is not None:
                digest.update(name.encode() + b"\0")
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _file(self, name: str) -> Path | None:
        if Path(self.place).is_dir():
            path = Path(self.place, name)
            return path if path.is_file() else None
        cached = transformers.utils.cached_file(
            self.place, name, revision=self.revision, _raise_exceptions_for_missing_entries=False
        )
        return Path(cached) if cached else None

    def _read(self, read: Callable[..., Any], what: str, **options: Any) -> Any:
        try:
            return read(self.place, revision=self.revision, trust_remote_code=False, **options)
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:300]
            cure = "put it into the folder MPT_MODELS_DIR, or let this machine reach the hub"
            detail = f"{what} could not be had, here or from the hub: {cure} ({reason})"
            raise self._refusal(f"cannot be used: {detail}") from error

    def _refusal(self, detail: str) -> RunError:
        return RunError("invalid", f"the checkpoint {self.name} {detail}")


def network_of(spec: MaskedLmModel, tokenizer: Tokenizer, seed: int) -> Network:
    """The network of a spec, in float32 on the CPU. Raises RunError."""
    checkpoint = Checkpoint.of(spec)
    match spec.init:
        case "pretrained":
            return checkpoint.pretrained(checkpoint.config())
        case "experiment":
            return _kept(str(spec.experiment))
        case _:
            config = _architecture(spec, tokenizer) or checkpoint.config()
            return fresh(config, stream(seed, "init").initial_seed())


def fresh(config: Config, seed: int) -> Network:
    """A network whose weights are drawn at random."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(transformers, MASKED_LMS[config.model_type])(config)


def _architecture(spec: MaskedLmModel, tokenizer: Tokenizer) -> Config | None:
    if spec.architecture is None:
        return None
    padding = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return transformers.BertConfig(
        vocab_size=len(tokenizer), pad_token_id=padding, **spec.architecture.model_dump()
    )


def _kept(experiment: str) -> Network:
    tensors, said = load_kept(experiment)
    if "config" not in said:
        detail = "trained a model of another family"
        raise RunError("invalid", f"experiment {experiment} {detail}")
    network = fresh(transformers.AutoConfig.for_model(**json.loads(said["config"])), 0)
    if set(tensors) != {name for name, _ in network.named_parameters()}:
        raise RunError("invalid", f"experiment {experiment} kept the weights of another network")
    network.load_state_dict(tensors, strict=False)  # what is tied goes by its first name alone
    return network


def positions(config: Config) -> int:
    """How many tokens a sequence may have."""
    most: int = getattr(config, "max_position_embeddings", 512)
    if config.model_type in ("roberta", "esm"):
        most -= config.pad_token_id + 1  # their positions are counted from there
    return most

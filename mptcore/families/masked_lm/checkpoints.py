"""Load masked language models and tokenizers of transformers: safetensors only, no remote code."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors import safe_open
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from mptcore.protocol.records import RunError
from mptcore.runtime.inputs import note_used
from mptcore.runtime.rng import generator_for
from mptcore.runtime.tensor_files import load_weights
from mptcore.specs import MaskedLmModel
from mptcore.specs.families.masked_lm import MAX_LAYERS

FAMILY = "masked_lm"

MASKED_LMS = {
    "albert": "AlbertForMaskedLM",
    "bert": "BertForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "esm": "EsmForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
}
"""The class for each supported model_type. A new entry needs a base model with hidden states for
each token and a head that treats each token independently. The tests of this package compare each
entry with plain transformers."""

COUNTED_FROM_PADDING = ("roberta", "esm")
"""Types whose positions are counted from the number of the padding token."""
VOCABULARY_FILES = ("vocab.txt", "merges.txt", "spiece.model")
"""Files of tokenizers that have no tokenizer.json."""
BLANKS = r"[\s\x1c-\x1f\x85]+"
"""Characters that Python's str.split removes."""

Tokenizer = Any
Network = Any
Config = Any


FOLDERS = (("MPT_MODELS_DIR", ""), ("MPT_STORE", "models"))
"""Variables that name folders, each with the folder in it that holds checkpoints."""


def preload() -> None:
    """Import the parts of transformers that are loaded lazily, in a process that will fork runs."""
    for name in ("AutoConfig", "AutoTokenizer", "EsmTokenizer", *MASKED_LMS.values()):
        getattr(transformers, name)


@dataclass(frozen=True)
class PretrainedSource:
    """Location of a checkpoint: a folder, or an id and revision of the hub."""

    name: str
    location: str
    revision: str | None

    @classmethod
    def of(cls, spec: MaskedLmModel) -> "PretrainedSource":
        """Return the folder of that name in MPT_MODELS_DIR or in the store if there is one, else
        the hub. Raises RunError."""
        for variable, folder in FOLDERS:
            root = os.environ.get(variable)
            local = Path(root, folder, spec.checkpoint).absolute() if root else None
            if local is not None and local.is_dir():
                source = cls(spec.checkpoint, str(local), None)
                if spec.revision is not None:
                    detail = f"lies in {variable}, which has no revisions: leave it null"
                    raise source._refusal(detail)
                return source
        source = cls(spec.checkpoint, spec.checkpoint, spec.revision)
        if Path(spec.checkpoint).exists():  # transformers would accept a relative path
            raise source._refusal("is not in MPT_MODELS_DIR, and is not an id of the hub")
        return source

    def tokenizer(self) -> Tokenizer:
        """Return its fast tokenizer with a mask token and a pad token. Raises RunError."""
        tokenizer = self._read(transformers.AutoTokenizer.from_pretrained, "a tokenizer")
        if isinstance(tokenizer, transformers.EsmTokenizer):
            tokenizer = fast_esm(tokenizer)
        if not getattr(tokenizer, "is_fast", False):
            raise self._refusal("has no tokenizer.json, the form that tokenizers reads")
        if tokenizer.mask_token_id is None:
            raise self._refusal("has a tokenizer without a mask token: it is not a masked model")
        if tokenizer.pad_token_id is None:
            raise self._refusal("has a tokenizer without a pad token")
        return tokenizer

    def config(self) -> Config:
        """Return its architecture, which must be a supported one. Raises RunError."""
        config = self._read(transformers.AutoConfig.from_pretrained, "a config.json")
        if config.model_type not in MASKED_LMS:
            supported = ", ".join(MASKED_LMS)
            raise self._refusal(f"is a {config.model_type}; supported types are {supported}")
        if config.model_type in COUNTED_FROM_PADDING and config.pad_token_id is None:
            detail = f"is of type {config.model_type}, but its config.json has no pad_token_id"
            raise self._refusal(detail)
        if getattr(config, "auto_map", None):
            detail = "has code of its own (auto_map in config.json), which is never run"
            raise self._refusal(f"{detail}; without it the model would be another one")
        if config.num_hidden_layers > MAX_LAYERS:
            detail = f"{config.num_hidden_layers} layers; at most {MAX_LAYERS} are computed"
            raise self._refusal(f"cannot be used: its config.json declares {detail}")
        return config

    def pretrained(self, config: Config) -> Network:
        """Return its network with its weights, including the head's. Raises RunError."""
        declared = least_parameters(config)
        saved = self._read(_saved_parameters, "weights in safetensors")
        if saved is not None and saved < declared:
            size = f"{config.num_hidden_layers} layers of hidden size {config.hidden_size}"
            size += f" and {config.vocab_size} tokens, {declared} parameters or more"
            detail = f"its config.json declares {size}, and its weights have {saved}"
            raise self._refusal(f"cannot be used: {detail}; one of the files is another model's")
        load = getattr(transformers, MASKED_LMS[config.model_type]).from_pretrained
        options = {"config": config, "use_safetensors": True, "output_loading_info": True}
        network, loaded = self._read(load, "weights in safetensors", **options, dtype=torch.float32)
        if missing := sorted(loaded["missing_keys"]):
            detail = f"lacks the weights of a masked-language head ({missing[0]}, …)"
            raise self._refusal(f"{detail}, which would be random: use another checkpoint")
        return network

    def digest(self, weights: bool) -> str:
        """Return the SHA-256 over its files by name: those of the tokenizer and the architecture
        and, with `weights`, the weights. It is recorded as an input of the run."""
        folder = self._read(_folder, "its files")
        patterns: tuple[str, ...] = ("*.json", "*.safetensors") if weights else ("*.json",)
        if not (folder / "tokenizer.json").is_file():
            patterns += VOCABULARY_FILES
        digest = hashlib.sha256()
        for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
            digest.update(path.name.encode() + b"\0")
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        files_digest = digest.hexdigest()
        note_used(f"{self._folder_name}, {' and '.join(patterns)} together", files_digest)
        return files_digest

    @property
    def _folder_name(self) -> str:
        if Path(self.location).is_absolute():
            store = Path(os.environ.get("MPT_STORE", ""), "models").absolute()
            is_in_store = Path(self.location).is_relative_to(store)
            return f"{'MPT_STORE/models' if is_in_store else 'MPT_MODELS_DIR'}/{self.name}"
        return f"{self.name} of the hub, {self.revision or 'its newest revision'}"

    def _read(self, read: Callable[..., Any], part: str, **options: Any) -> Any:
        try:
            return read(self.location, revision=self.revision, trust_remote_code=False, **options)
        except MemoryError:
            raise
        except Exception as error:  # tokenizers raises plain ones for damaged files
            reason = " ".join(str(error).replace(f"{self.location}/", "").split())[:300]
            if Path(self.location).is_dir():
                detail = f"{part} could not be read from its folder, {self._folder_name}: "
                detail += f"a file is missing or damaged ({type(error).__name__}: {reason})"
            else:
                advice = "put it into the folder MPT_MODELS_DIR, or let this machine reach the hub"
                detail = (
                    f"{part} could not be loaded from here or from the hub: {advice} ({reason})"
                )
            raise self._refusal(f"cannot be used: {detail}") from error

    def _refusal(self, detail: str) -> RunError:
        return RunError("invalid", f"the checkpoint {self.name} {detail}")


def least_parameters(config: Config) -> int:
    """Return the number of parameters of the embedding of tokens and of attention, which is less
    than a model of this architecture has. Layers that share their weights count once."""
    layers = config.num_hidden_layers
    if config.model_type == "albert":
        layers = config.num_hidden_groups * config.inner_group_num
    width: int = getattr(config, "embedding_size", config.hidden_size)
    parameters: int = config.vocab_size * width + layers * 4 * config.hidden_size**2
    return parameters


def _saved_parameters(location: str, revision: str | None, trust_remote_code: bool) -> int | None:
    """Return the number of parameters in the files of a checkpoint's weights, by their headers.
    None if no such file is here yet."""
    parameters = None
    for path in _folder(location, revision, trust_remote_code).glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]
        parameters = (parameters or 0) + sum(map(math.prod, shapes))
    return parameters


def _folder(location: str, revision: str | None, trust_remote_code: bool) -> Path:
    """Return the folder with a checkpoint's files. For the hub it holds the files that were needed
    so far."""
    if Path(location).is_dir():
        return Path(location)
    file = transformers.utils.cached_file(location, "tokenizer_config.json", revision=revision)
    return Path(file).parent


def fast_esm(esm: Tokenizer) -> Tokenizer:
    """Return a fast tokenizer with the tokens of an EsmTokenizer, which transformers has only in
    Python: all tokens of the vocabulary are cut out of the text, longest first, and each other part
    without a blank is an unknown token."""
    tokens = sorted(filter(None, esm.get_vocab()), key=len, reverse=True)
    any_token, blanks = tokenizers.Regex("|".join(map(re.escape, tokens))), tokenizers.Regex(BLANKS)
    fast = tokenizers.Tokenizer(WordLevel(esm.get_vocab(), unk_token=esm.unk_token))
    parts = [Split(any_token, "isolated"), Split(blanks, "removed")]
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(parts)
    end = "" if esm.eos_token is None else f" {esm.eos_token}"
    ends = [name for name in (esm.cls_token, esm.eos_token) if name is not None]
    fast.post_processor = TemplateProcessing(
        single=f"{esm.cls_token} $A{end}",
        pair=f"{esm.cls_token} $A{end} $B{end}",
        special_tokens=[(name, esm.convert_tokens_to_ids(name)) for name in ends],
    )
    special = {name: str(token) for name, token in esm.special_tokens_map.items()}
    inputs = esm.model_input_names
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, model_input_names=inputs, **special
    )
    tokenizer.add_tokens([*esm.added_tokens_decoder.values()])
    return tokenizer


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of the vocabulary."""
    tokens = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(tokens.encode()).hexdigest()


def network_of(spec: MaskedLmModel, tokenizer: Tokenizer, seed: int) -> Network:
    """Return the network of a spec, in float32 on the CPU. Raises RunError."""
    source = PretrainedSource.of(spec)
    match spec.init:
        case "pretrained":
            return source.pretrained(source.config())
        case "experiment":
            return _kept(str(spec.experiment), tokenizer)
        case _:
            config = _architecture(spec, tokenizer) or source.config()
            return fresh(config, generator_for(seed, "init").initial_seed())


def fresh(config: Config, seed: int) -> Network:
    """Return a network with random weights."""
    with torch.random.fork_rng(devices=[]):  # it is made on the CPU
        torch.manual_seed(seed)
        return getattr(transformers, MASKED_LMS[config.model_type])(config)


def _architecture(spec: MaskedLmModel, tokenizer: Tokenizer) -> Config | None:
    if spec.architecture is None:
        return None
    padding = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return transformers.BertConfig(
        vocab_size=len(tokenizer), pad_token_id=padding, **spec.architecture.model_dump()
    )


def weights_header(config: Config, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the header of a weights file: the architecture and the vocabulary."""
    config_text = json.dumps(config.to_dict(), sort_keys=True)
    return {"config": config_text, "vocabulary": vocabulary_digest(tokenizer)}


def _kept(experiment: str, tokenizer: Tokenizer) -> Network:
    tensors, header = load_weights(FAMILY, experiment)
    if header["vocabulary"] != vocabulary_digest(tokenizer):
        detail = "was trained with another tokenizer: use the checkpoint of its spec"
        raise RunError("invalid", f"experiment {experiment} {detail}")
    network = fresh(transformers.AutoConfig.for_model(**json.loads(header["config"])), 0)
    if set(tensors) != {name for name, _ in network.named_parameters()}:
        raise RunError("invalid", f"experiment {experiment} kept the weights of another network")
    network.load_state_dict(tensors, strict=False)  # tied weights have only their first name
    return network


def positions(config: Config) -> int:
    """Return the maximum number of tokens of a sequence."""
    max_tokens: int = getattr(config, "max_position_embeddings", 512)
    if config.model_type in COUNTED_FROM_PADDING:
        max_tokens -= config.pad_token_id + 1
    return max_tokens

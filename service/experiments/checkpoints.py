"""Files of a checkpoint that a run needs. They are looked at without loading the checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mptcore.specs import MaskedLmModel

TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
"""Files of which a tokenizer has at least one."""
WITHOUT_DEFAULTS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers that have no special tokens but those that their files name."""
COUNTED_FROM_PADDING = {"roberta": 1, "esm": None}
"""Types whose positions are counted from the number of the padding token, with its default."""
POINTER = b"version https://git-lfs"
"""Beginning of a file that Git LFS has not fetched."""
INDEX = "model.safetensors.index.json"
"""File that names the parts of large weights."""
NO_WEIGHTS = "has no weights in safetensors"
SAVE = "save_pretrained of transformers writes them"


def checkpoint_problem(folder: Path, model: MaskedLmModel) -> str | None:
    """Return why a model cannot be read from the folder of its checkpoint, if that is known."""
    return next(_problems(folder, model), None)


def _problems(folder: Path, model: MaskedLmModel) -> Iterator[str]:
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield f"has no tokenizer: {SAVE}"
    yield from _token_problems(folder)
    if model.init == "pretrained":
        yield from _weight_problems(folder)
    if model.init == "experiment" or model.architecture is not None:
        return
    config = _json(folder / "config.json")
    if config is None:
        yield f"has no config.json, its architecture: {SAVE}"
        return
    kind = str(config.get("model_type"))
    padding = config.get("pad_token_id", COUNTED_FROM_PADDING.get(kind))
    if kind in COUNTED_FROM_PADDING and padding is None:
        yield f"is of type {kind}, but its config.json has no pad_token_id"


def _token_problems(folder: Path) -> Iterator[str]:
    """Yield the special tokens that a tokenizer lacks. Most classes have defaults for them."""
    settings = _json(folder / "tokenizer_config.json") or {}
    files = (settings, _json(folder / "special_tokens_map.json") or {})
    has_defaults = settings.get("tokenizer_class") not in WITHOUT_DEFAULTS
    for name in ("mask", "pad"):
        values = [file[f"{name}_token"] for file in files if f"{name}_token" in file]
        if not (any(values) if values else has_defaults):
            yield f"has a tokenizer without a {name} token"


def _weight_problems(folder: Path) -> Iterator[str]:
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickles = sorted(one.name for one in folder.glob("*.bin"))
        other = f", only {pickles[0]}, which is never read" if pickles else ""
        yield f"{NO_WEIGHTS}{other}: {SAVE}"
    shards = (_json(folder / INDEX) or {}).get("weight_map") or {}
    if missing := sorted({*shards.values()} - {file.name for file in weights}):
        yield f"lacks {missing[0]}, a part of its weights that {INDEX} names"
    for file in weights:
        with file.open("rb") as content:
            if content.read(len(POINTER)) == POINTER:
                yield f"{NO_WEIGHTS}: {file.name} is a pointer of Git LFS; git lfs pull fetches it"


def _json(file: Path) -> dict[str, Any] | None:
    """Return the object in a file; None if there is none."""
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None

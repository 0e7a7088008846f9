"""Tiny language models with a tokenizer of words, as checkpoints on disk."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split, Whitespace
from tokenizers.processors import TemplateProcessing

from mptcore.families.masked_lm.pretrained import MASKED_LMS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "red", "old"]

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
EXTRA: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "electra": {"embedding_size": 8},
    "esm": {"mask_token_id": 4, "token_dropout": True, "position_embedding_type": "rotary"},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8},
}


def tokenizer(words: list[str] = WORDS) -> Any:
    vocabulary = {token: i for i, token in enumerate(SPECIAL + words)}
    own = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    own.pre_tokenizer = Whitespace()
    own.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ("pad", "unk", "cls", "sep", "mask")
    tokens = {f"{name}_token": token for name, token in zip(names, SPECIAL, strict=True)}
    takes = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, model_input_names=takes, **tokens
    )


def letter_tokenizer(letters: str, longer: str = "XX") -> Any:
    """Return a tokenizer of letters, like that of ESM, and of one longer token."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *letters, longer])}
    own = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    own.pre_tokenizer = Split(tokenizers.Regex(f"{longer}|."), "isolated")
    frame = [("[CLS]", 2), ("[SEP]", 3)]
    own.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    special = {f"{name[1:-1].lower()}_token": name for name in SPECIAL}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=own, **special)


def network(kind: str = "bert", words: list[str] = WORDS, scale: float = 1.0, **sizes: Any) -> Any:
    """A network with weights at random; `scale` makes its predictions far from uniform."""
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    ids |= {"bos_token_id": 2, "eos_token_id": 3}
    own = {**SIZES, **EXTRA.get(kind, {}), **sizes}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=len(SPECIAL) + len(words), **ids, **own
    )
    torch.manual_seed(7)
    made = getattr(transformers, MASKED_LMS[kind])(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return made


def checkpoint(folder: Path, kind: str = "bert", scale: float = 8.0, **sizes: Any) -> Path:
    """A checkpoint in a folder of its own."""
    network(kind, scale=scale, **sizes).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def lines(count: int, seed: int = 0) -> list[str]:
    """Sentences of 3 to 9 words."""
    draws = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(3, 10, (1,), generator=draws))
        places = torch.randint(len(WORDS), (length,), generator=draws).tolist()
        found.append(" ".join(WORDS[i] for i in places))
    return found


def plain_pll(folder: Path, text: str) -> float:
    """The pseudo-log-likelihood by plain transformers, a pass for each token. Special tokens are
    seen, but not scored."""
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    if getattr(network.config, "type_vocab_size", 0) <= 1:
        inputs.pop("token_type_ids", None)
    ids = inputs["input_ids"][0].tolist()
    unscored = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    total = 0.0
    for place in (i for i, token in enumerate(ids) if token not in unscored):
        seen = torch.tensor([ids])
        seen[0, place] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = network(**{**inputs, "input_ids": seen}).logits[0, place]
        total += logits.log_softmax(-1)[ids[place]].item()
    return total

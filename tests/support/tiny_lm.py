"""Tiny language models with a tokenizer of words, as checkpoints on disk."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split, Whitespace
from tokenizers.processors import TemplateProcessing

from mptcore.families.masked_lm.checkpoints import MASKED_LMS

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


ESM_TOKENS = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . -".split()
ESM_TOKENS += ["<null_1>", "<mask>"]
"""Vocabulary of the published ESM models."""


def published_tokenizer(kind: str, folder: Path) -> Any:
    """Save a tokenizer of the class that transformers has for a type of model, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*SPECIAL, *WORDS, *"bcdefghijklmnopqrstuvwxyz", *(f"##{one}" for one in "abdrst")]
    match kind:
        case "bert" | "distilbert" | "electra":
            names = {"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra"}
            vocabulary = {piece: i for i, piece in enumerate(pieces)}
            own = getattr(transformers, f"{names[kind]}Tokenizer")(vocabulary)
        case "albert":
            special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
            words = [f"▁{word}" for word in WORDS]
            scores = [(piece, -1.0) for piece in (*special, *words, *"abcdt")]
            own = transformers.AlbertTokenizer(scores)
        case "roberta":
            tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdegmnorst", "Ġ", "at", "Ġc"]
            vocabulary = {token: i for i, token in enumerate(tokens)}
            own = transformers.RobertaTokenizer(vocabulary, [("a", "t"), ("Ġ", "c")])
        case "esm":
            (folder / "vocab.txt").write_text("\n".join(ESM_TOKENS))
            own = transformers.EsmTokenizer(str(folder / "vocab.txt"))
        case _:
            own = tokenizer()  # ModernBERT has no class of its own
    own.save_pretrained(folder)
    return own


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
    own = {**ids, **SIZES, **EXTRA.get(kind, {}), **sizes}
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(SPECIAL) + len(words), **own)
    torch.manual_seed(7)
    made = getattr(transformers, MASKED_LMS[kind])(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return made


def published_checkpoint(folder: Path, kind: str, scale: float = 8.0) -> Path:
    """A checkpoint as transformers saves it, with the tokenizer class of its type."""
    own = published_tokenizer(kind, folder)
    ids = {"pad_token_id": own.pad_token_id}
    if kind == "esm":
        ids["mask_token_id"] = own.mask_token_id
    words = [""] * (len(own) - len(SPECIAL))
    network(kind, words, scale, **ids).save_pretrained(folder)
    return folder


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

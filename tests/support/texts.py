"""Texts and language models, in this process."""

import torch

from mptcore.families.masked_lm import corpus
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.specs import PlainText
from tests.support import tiny_lm

CPU = torch.device("cpu")


def corpus_of(lines: list[str], **options: object) -> Corpus:
    spec = PlainText.model_validate({"source": "text", "lines": lines, **options})
    return corpus.read(spec, tiny_lm.tokenizer(), 40)

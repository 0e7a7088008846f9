"""Masked language models: text, masks, scores and training."""

from mptcore.data.vision import make_importable

make_importable()  # transformers imports torchvision

"""Masked language models: their text, their masks, their scores, their training."""

"""Masked language models: text, masks, scores and training."""

"""Presets: the paper's experiments, their runs and verdicts."""

"""Experiments: submissions, states, and results."""

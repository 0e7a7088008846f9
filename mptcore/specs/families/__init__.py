"""Experiment specs of the families."""

"""Experiments: what is asked for, where it stands, what came out."""

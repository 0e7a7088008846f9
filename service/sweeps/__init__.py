"""Sweeps: many experiments from one spec by a grid, a list or random draws of any of its fields."""

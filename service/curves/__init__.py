"""Curves over HTTP: JSON, CSV and Arrow."""

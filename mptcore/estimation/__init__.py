"""Estimates with errors, from any model that scores masks."""

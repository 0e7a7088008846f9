"""Upkeep of a store: start, migration, backup and retention."""

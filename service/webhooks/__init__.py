"""Telling users' own servers that experiments have ended."""

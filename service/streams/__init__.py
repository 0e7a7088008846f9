"""Telling what happens while it does: event streams, and answers that wait for a change."""

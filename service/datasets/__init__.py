"""Uploaded data sets: streamed to the store, inspected, owned."""

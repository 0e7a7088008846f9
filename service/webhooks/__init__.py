"""Webhooks: notify users' own servers that experiments have ended."""

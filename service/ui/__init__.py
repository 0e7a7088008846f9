"""The dashboard. Its pages contain no data: they use the API."""

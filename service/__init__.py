"""The HTTP service and the store behind it. Nothing here imports torch."""

"""The first minutes on a GPU: what must hold there, and how fast it is."""

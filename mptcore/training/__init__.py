"""Training of any family: `train` in `loop.py` calls a trainer's `advance`, epoch by epoch."""

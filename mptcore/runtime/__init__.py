"""One run as a process: its session, checkpoints, kept tensors, random numbers. No family."""

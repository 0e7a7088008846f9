"""One run as a process: its state, checkpoints, tensor files, random numbers. Knows no family."""

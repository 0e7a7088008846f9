"""One run as a process: session, checkpoints, tensor files, random numbers. Knows no family."""

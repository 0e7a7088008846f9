"""Records of runs: how they are stored, read, downsampled and followed."""

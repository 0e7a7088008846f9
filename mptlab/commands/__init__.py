"""The commands of `mpt`, by theme."""

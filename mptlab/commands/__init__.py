"""The commands of `mpt`, by topic."""

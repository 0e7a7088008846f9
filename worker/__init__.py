"""Run experiments: the supervisor of one runner process, and the local worker."""

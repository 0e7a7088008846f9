"""How a run ends, as the exit status of its process."""

COMPLETE = 0
FAILED = 1
"""After a failure record."""
INVALID = 2
"""A bad spec: one line for each problem on stderr."""
STOPPED = 3
"""Stopped on request, with a checkpoint saved."""

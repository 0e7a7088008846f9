"""Exit statuses of a run's process."""

COMPLETE = 0
FAILED = 1
"""Failed. The last record is a failure record."""
INVALID = 2
"""Bad spec. Each problem is a line on stderr."""
STOPPED = 3
"""Stopped on request, after saving a checkpoint."""

"""Exit statuses of a run's process."""

COMPLETE = 0
FAILED = 1
"""Failed. The last record is a failure record."""
INVALID = 2
"""Bad spec. Each problem is a line on stderr."""
STOPPED = 3
"""Stopped on request, after saving a checkpoint. A helper ends so if it can read no checkpoint of
the run, because newer ones have replaced those that it was given."""
NOT_WORTHWHILE = 4
"""Ended by a helper that mostly draws masks."""

"""The queue: the next runs and their workers, leases, limits, and expected starts."""

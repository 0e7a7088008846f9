"""The queue: who runs next and where, leases, limits, and expected starts."""

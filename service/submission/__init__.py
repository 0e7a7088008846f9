"""Submit experiments: one, many, a sweep, or again."""

"""Filters of lists of experiments: text, parsed to a tree, compiled to SQL with bound
parameters."""

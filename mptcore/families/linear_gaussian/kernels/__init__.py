"""Compiled loops of PPCA and factor analysis. Each module may use loops of the others, so numba
compiles all again when one of them has changed."""

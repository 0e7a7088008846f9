"""PPCA and factor analysis."""

"""Specs of PPCA and factor analysis."""

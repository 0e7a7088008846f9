"""Conversion of JSON to a spec, or to a list of its problems."""

"""Checks that estimates are unbiased and their errors right, over a thousand seeds each."""

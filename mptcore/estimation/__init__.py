"""Estimates with errors, from any model that scores masks.

`evaluate.py` leads from masks to records. `masks.py` draws, `scores.py` scores batches and
estimates each size and their sum, `estimate.py` has the errors, and `not_final.py` decides what may
be quoted.
`allocation.py`, `target.py` and `control_variate.py` score until a target error is reached.
"""

"""The client for asyncio, from which `python -m mptlab._async` makes the one without.

A change is made here, and `make client` writes it into mptlab/api.py and its neighbours.
"""

"""Data from every source: simulated, in files, uploaded, from hubs. What
inspects an upload imports no torch."""

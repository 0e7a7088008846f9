"""Each performance claim is one command: `python -m benchmarks [NAME …]` writes one table, with the
machine it was measured on, and the cost plots, to bench-output/."""

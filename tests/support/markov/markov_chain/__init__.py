"""A family for MPT Lab: a binary Markov chain over the dimensions."""

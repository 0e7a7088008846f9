"""One package for each family of models; none knows another."""

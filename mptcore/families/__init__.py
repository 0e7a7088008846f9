"""One package for each family of models. None knows another, but that VAEs may have
a linear Gaussian as baseline."""

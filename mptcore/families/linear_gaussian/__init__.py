"""PPCA and factor analysis: Gaussians whose covariance is low rank plus diagonal."""

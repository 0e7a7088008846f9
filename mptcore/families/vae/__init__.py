"""Models with latent variables that are integrated out numerically: linear and deep VAEs."""

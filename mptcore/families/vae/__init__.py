"""Models with latent variables that are integrated numerically: linear and deep VAEs."""

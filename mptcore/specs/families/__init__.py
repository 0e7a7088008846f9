"""One experiment spec for each family."""

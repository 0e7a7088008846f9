"""Many experiments from one spec: a grid, a list or random draws of any of its fields."""

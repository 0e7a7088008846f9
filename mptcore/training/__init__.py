"""The training loop and the parts that all trainers share."""

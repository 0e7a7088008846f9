"""From a model that can be scored to estimates with their errors."""

"""Which experiments a list holds, as its caller writes it: text, then a tree, then bound SQL."""

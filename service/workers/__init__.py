"""Workers: their tables, and the routes that show them."""

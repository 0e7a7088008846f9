"""Linear and deep VAEs."""

"""The long forms of the tests that hold estimates to their errors."""

"""Whether standard errors are as large as the errors: over many seeds, against known truths."""

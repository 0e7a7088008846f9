"""The database: its engine, errors, revisions and who sees a row."""

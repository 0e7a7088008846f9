"""Event streams, and answers that wait for a change."""

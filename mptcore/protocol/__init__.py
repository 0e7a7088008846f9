"""Messages between a run and its supervisor, as lines of JSON. No torch."""

"""From JSON to a spec, or to every problem with it."""

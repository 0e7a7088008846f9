"""Everything about HTTP in the service. Other folders do not import FastAPI."""

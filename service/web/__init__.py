"""All of the service that speaks HTTP. Nothing else imports FastAPI."""

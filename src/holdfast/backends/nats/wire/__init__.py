"""How this backend speaks with a NATS server."""

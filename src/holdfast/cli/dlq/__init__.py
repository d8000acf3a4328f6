"""`holdfast dlq`: what died and why, and what can be done about it."""

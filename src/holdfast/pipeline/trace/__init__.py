"""Trace: the life of one event."""

"""Rebuild: a warehouse from WAL and archive."""

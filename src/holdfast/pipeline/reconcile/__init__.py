"""Reconcile: published = archived = ingested + failed, event by event."""

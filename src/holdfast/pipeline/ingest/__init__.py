"""The ingest: channels into the warehouse, through the WAL."""

"""The loader: from the WAL into the warehouse."""

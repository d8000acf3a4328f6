"""The world of the WAL: drivers, loaders and cleaning as they are, over objects and a warehouse in memory."""

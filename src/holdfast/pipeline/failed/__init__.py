"""Failed events: what did not go into the warehouse, and what operators do about it."""

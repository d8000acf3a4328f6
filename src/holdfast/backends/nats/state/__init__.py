"""How this backend keeps its state in the stream, and mirrors it in memory."""

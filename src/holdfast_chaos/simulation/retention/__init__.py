"""The world of retention: a log, its stream consumers and workers, and sweepers that trim it."""

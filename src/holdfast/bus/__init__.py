"""The bus: the client, its partitions and the worker runtime."""

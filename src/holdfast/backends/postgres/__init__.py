"""PostgreSQL."""

from holdfast.backends.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]

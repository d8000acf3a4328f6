"""Redis."""

from holdfast.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]

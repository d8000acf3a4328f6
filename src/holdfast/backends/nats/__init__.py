"""NATS JetStream."""

from holdfast.backends.nats.backend import NatsBackend

__all__ = ["NatsBackend"]

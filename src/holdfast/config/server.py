"""The section of the HTTP server."""

from __future__ import annotations

from datetime import timedelta

from holdfast.config.sections import Section
from holdfast.config.values import Batch, Count, Port, Positive, Size


class Limits(Section):
    """What one request may cost."""

    body: Size = 16 << 20
    """The largest body; a stream of events is counted as it comes. Larger ones are answered with 413."""
    batch: Batch = 1000
    """The most events, or jobs, in one call."""
    headers: Size = 32 << 10
    """The largest address and headers together; above it the answer is 431."""
    depth: Batch = 64
    """How deep JSON may nest."""
    rate: Count = 1000
    """Requests a second for each token, twice as many at once; above it the answer is 429. 0: no limit."""
    timeout: Positive = timedelta(seconds=60)
    """How long a request may take before its answer begins; after it the answer is 504. A poll has its `wait`
    on top of it."""


class Server(Section):
    """The HTTP server of `holdfast up` and `holdfast serve`."""

    host: str = "127.0.0.1"
    """The address that it listens on. Only this machine reaches the default."""
    port: Port = 8420
    """The port. 0 takes a free one."""
    require_signatures: bool = False
    """Whether a token's secret must not travel: requests are signed with it instead."""
    signature_window: Positive = timedelta(minutes=5)
    """How far the time of a signature may be from the store's."""
    limits: Limits = Limits()

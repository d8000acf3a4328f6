"""The section of the HTTP server."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from holdfast.config.sections import Section
from holdfast.config.values import Batch, Count, Network, Port, Positive, Size


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
    values: Batch = 200_000
    """How many values (numbers, texts, lists, objects) JSON may have: a body, or an event of a batch or of a
    stream; a whole batch four times as many. Above it the answer is 413."""
    answer: Size = 4 << 20
    """How many bytes of events one answer has, about: a list ends after the event that reaches it, with the
    place where to go on; a poll leases no more."""
    channels: Batch = 1000
    """The most channels that a token, unless it is an admin's, may cover and still make a new one, which
    publishing does; above it the answer is 409."""
    consumers: Batch = 100
    """The most worker consumers of a channel, unless an admin makes more; above it the answer is 409."""
    rate: Count = 1000
    """Requests a second for each token, twice as many at once; above it the answer is 429. 0: no limit."""
    timeout: Positive = timedelta(seconds=60)
    """How long a request may take before its answer begins, without the time in which its body comes; after
    it the answer is 504. A poll has its `wait` on top of it."""
    header_timeout: Positive = timedelta(seconds=10)
    """How long a client may take to send the headers of a request; after it the answer is 408."""
    body_timeout: Positive = timedelta(seconds=30)
    """How long the server waits for the body of a request, in all; after it the answer is 408."""
    write_timeout: Positive = timedelta(seconds=30)
    """How long a client may take to go on reading an answer; after it the connection is closed."""
    keep_alive: Positive = timedelta(seconds=75)
    """How long a connection may wait for its next request. Longer than a proxy in front keeps its own."""
    connections: Batch = 1000
    """The most connections; never more than half of the descriptors that the process may open. One more takes
    the place of the one that has waited longest for a request; where none waits it is answered with 503."""
    connections_per_address: Batch = 200
    """The most connections from one address, or from one /64 of IPv6."""
    live: Batch = 200
    """The most live pages that are open at once; above it the answer is 503."""
    live_per_caller: Batch = 20
    """The most of them for one token; above it the answer is 429."""


class Server(Section):
    """The HTTP server of `holdfast up` and `holdfast serve`."""

    host: str = "127.0.0.1"
    """The address that it listens on. Only this machine reaches the default."""
    port: Port = 8420
    """The port. 0 takes a free one."""
    open: bool = False
    """Whether programs on this machine may do everything without a token. Only on loopback, and never behind
    a proxy: then everybody whom the proxy lets through is on this machine."""
    open_metrics: bool = False
    """Whether `/metrics` is read without a token, by everybody who reaches the server."""
    trusted_proxies: tuple[Network, ...] = ()
    """The addresses and networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed: who
    calls, for limits and logs, and whether over TLS."""
    require_signatures: bool = False
    """Whether a token's secret must not travel: requests are signed with it instead."""
    signature_window: Positive = timedelta(minutes=5)
    """How far the time of a signature may be from the store's."""
    session_lifetime: Positive = timedelta(hours=12)
    """How long a browser stays signed in."""
    limits: Limits = Field(default_factory=Limits)

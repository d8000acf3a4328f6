"""Notices: the text that a store sends to its listeners. `CHANNEL`, which has new work, or
`CHANNEL/CONSUMER/JOB`, a leased job that was cancelled. No name has a slash in it."""

from __future__ import annotations

from collections.abc import Callable, Collection


def deliver(
    text: str,
    channels: Collection[str],
    wake: Callable[[str], None],
    cancelled: Callable[[str, str, str], None],
) -> None:
    """Tell of it whoever listens to its channel. What is neither of the two is nobody's business here."""
    match text.split("/"):
        case [channel] if channel in channels:
            wake(channel)
        case [channel, consumer, job] if channel in channels:
            cancelled(channel, consumer, job)

"""What a sabotage is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Sabotage = Callable[[str], Awaitable[None]]
"""Does something to the store at a URL behind the back of the bus, through a plain client."""


def had_effect(changed: bool) -> None:
    """A sabotage that changes nothing would prove nothing."""
    if not changed:
        raise RuntimeError(
            "a sabotage found nothing to change; the scenario before it has to leave something"
        )

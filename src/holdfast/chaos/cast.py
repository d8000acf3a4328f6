"""The cast: whose consumers work on which channels, the rig's own or those of a user's app."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.bus.app import App
from holdfast.bus.client import Bus
from holdfast.chaos.parties.consumer import CONSUMERS, users_app
from holdfast.chaos.roles import CHANNEL, POLICY
from holdfast.model.errors import InvalidInput


class Cast(Protocol):
    """Who consumes, and what is published to them."""

    @property
    def consumers(self) -> list[tuple[str, str]]:
        """Channels and consumers."""

    def published(self, place: int) -> dict[str, Any]:
        """What a producer in that place must know."""

    async def found(self, bus: Bus) -> None:
        """Create the consumers."""


class Own:
    """The rig's own."""

    def __init__(self, policies: dict[str, dict[str, Any]] | None = None) -> None:
        self._policies = policies or {name: POLICY | {"ordered": ordered} for name, ordered in CONSUMERS}

    @property
    def consumers(self) -> list[tuple[str, str]]:
        return [(CHANNEL, name) for name in self._policies]

    def published(self, place: int) -> dict[str, Any]:
        return {}

    async def found(self, bus: Bus) -> None:
        for name, policy in self._policies.items():
            await bus.subscribe(CHANNEL, name, **policy)


@dataclass(frozen=True, slots=True)
class Users:
    """A user's handlers, with samples of what they get."""

    app: App
    samples: Path

    @property
    def consumers(self) -> list[tuple[str, str]]:
        return [(handler.channel, handler.consumer) for handler in self.app.handlers]

    def published(self, place: int) -> dict[str, Any]:
        channels = sorted({channel for channel, _ in self.consumers})
        return {"channel": channels[place % len(channels)], "samples": str(self.samples)}

    async def found(self, bus: Bus) -> None:
        for each in self.app.handlers:
            await bus.ensure(each.channel, each.consumer, start=each.start, **each.policy)


def cast_of(app: str | None, samples: Path | None) -> Cast:
    """The rig's own cast, or that of an app, which needs samples."""
    if app is None:
        return Own()
    if samples is None or not samples.is_file() or not samples.read_bytes().strip():
        raise InvalidInput(
            f"--app needs --events, a file with the data of one event in each line; got {samples}"
        )
    return Users(users_app(app), samples)

"""Sabotage: what the judge must see although no call of the bus did it."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.chaos.controls.sabotage import nats, postgres, redis
from holdfast.chaos.controls.sabotage.contract import Sabotage

SABOTAGE: Mapping[str, Mapping[str, Sabotage]] = {
    "postgres": postgres.SABOTAGE,
    "redis": redis.SABOTAGE,
    "nats": nats.SABOTAGE,
}
"""By store, and by what it does."""
BREAKS: Mapping[str, str] = {
    "an event is lost with its job": "I1",
    "an event changes": "I1",
    "a done job vanishes": "I3",
    "a done job is live again": "I3",
    "a dead letter goes uncounted": "I3",
    "a job gets an attempt too many": "I4",
    "a job is done that nobody completed": "I4",
    "a token falls": "I5",
    "a done job has another token": "I5",
    "a running lease is given to another": "I6",
    "a running lease is taken back": "I6",
    "a running job loses its event": "I7",
}
"""The invariant that each of them breaks."""


async def commit(url: str, what: str) -> None:
    """Do that to the store at a URL."""
    scheme = url.partition(":")[0]
    await SABOTAGE["postgres" if scheme == "postgresql" else scheme][what](url)

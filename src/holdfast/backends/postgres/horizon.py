"""The horizon of a channel: up to where its log can be read, since nothing can still commit below."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from holdfast.backends.postgres.arrays import TextArray
from holdfast.backends.postgres.positions import BEFORE_ALL, Place
from holdfast.backends.postgres.session import Session
from holdfast.model.errors import Unavailable

# Until publishers that have just begun have told their numbers: a moment, unless the server is overloaded.
_PAUSES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


async def horizons(session: Session, channels: Iterable[str]) -> dict[str, Place]:
    """The horizon of each channel that there is.

    It never moves back, and has to be known before the statement that reads begins. Raises `Unavailable`
    where a publisher has begun and does not go on.
    """
    names = TextArray(channels)
    for pause in _PAUSES:
        rows = await session.rows("horizons", channels=names)
        if not (entering := {channel: pids for channel, _, _, pids in rows if pids}):
            return {channel: (epoch, seq) for channel, epoch, seq, _ in rows}
        await asyncio.sleep(pause)
    raise Unavailable(
        f"publishes by server process that began and do not go on, by channel: {entering}; "
        "try again, or end them with pg_terminate_backend"
    )


async def horizon(session: Session, channel: str) -> Place:
    """The horizon of one channel; before all where there is no such channel. Raises as `horizons` does."""
    return (await horizons(session, [channel])).get(channel, BEFORE_ALL)

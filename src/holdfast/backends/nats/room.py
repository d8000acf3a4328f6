"""Room: publishes end before the store is full, so that what is in it can still be worked off.

At its limit a server refuses every message, also those that end a job, take a lock or move a trim's floor.
And a batch that crosses the limit of an account or of the server is not refused whole: its first part stays.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.backends.nats import subjects
from holdfast.backends.nats.batch import Message
from holdfast.backends.nats.link import Link
from holdfast.model.errors import Overloaded

SERVER = "$SYS.REQ.SERVER.PING.JSZ"
_STREAM, _ACCOUNT = f"$JS.API.STREAM.INFO.{subjects.STREAM}", "$JS.API.INFO"
_SHARE, _MOST = 10, 64_000_000  # of a limit a tenth is kept, and not more than this
_EACH = 300  # bytes that a message takes besides its data, about
_FRESH, _OTHERS = 1.0, 8  # a look is good for a second, and for an eighth of what was left then
_TRIES = 3


class Limit(NamedTuple):
    """How much one of the server's limits allows, and how much of it is used."""

    name: str
    most: float = float("inf")
    used: int = 0

    def left(self, keep: float) -> float:
        """What may be used so that some of the reserve stays."""
        return self.most - self.used - keep * min(self.most / _SHARE, _MOST)


class Room:
    """Looks at the limits now and then, and counts in between what this process adds."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._looking = asyncio.Lock()
        self._limit, self._added = Limit("none"), 0
        self._until, self._generation = 0.0, 0
        self._answers: dict[str, dict[str, Any]] = {}
        self._unanswered: Counter[str] = Counter()

    async def use(self, messages: Sequence[Message], keep: float = 1) -> None:
        """Before messages are added: `Overloaded` where they would not leave that part of the reserve."""
        size = sum(len(message.data) + _EACH for message in messages)
        async with self._looking:
            left = self._limit.left(keep) / _OTHERS
            if time.monotonic() >= self._until or self._added + size > left:
                await self._look()
            if self._added + size > self._limit.left(keep):
                raise Overloaded(
                    f"the store is nearly full: {self._limit.used} bytes of {self._limit.name} "
                    f"{self._limit.most:.0f}, and the rest is for the jobs that there are; raise it, or trim"
                )
            self._added += size

    async def _look(self) -> None:
        if self._generation != self._link.generation:
            self._generation = self._link.generation
            self._answers.clear()
            self._unanswered.clear()
        answers = await asyncio.gather(*map(self._ask, (_STREAM, _ACCOUNT, SERVER)))
        self._limit, self._added = min(_limits(*answers), key=lambda limit: limit.left(1)), 0
        self._until = time.monotonic() + _FRESH

    async def _ask(self, question: str) -> dict[str, Any]:
        """The newest answer. Not everybody may ask for all limits: who never got one asks no more."""
        if question in self._answers or self._unanswered[question] < _TRIES:
            answer = await self._link.inquire(question, {"config": True} if question == SERVER else None)
            if answer is None:
                self._unanswered[question] += 1
            else:
                self._answers[question] = answer
        return self._answers.get(question, {})


def _limits(stream: dict[str, Any], account: dict[str, Any], server: dict[str, Any]) -> Iterator[Limit]:
    yield Limit("none")
    most = stream.get("config", {}).get("max_bytes", -1)
    if most > 0:
        yield Limit("the stream's max_bytes", most, stream["state"]["bytes"])
    most = account.get("limits", {}).get("max_storage", -1)
    if most > 0:
        yield Limit("the account's max_file", most, account["storage"])
    leader, data = stream.get("cluster", {}).get("leader"), server.get("data", {})
    most = data.get("config", {}).get("max_storage", -1)
    if most > 0 and leader in (None, server["server"]["name"]):
        yield Limit("the server's max_file_store", most, data["storage"])

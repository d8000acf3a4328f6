"""Conditions: a change that is meant for what its caller saw (`If-Match`, `If-None-Match`)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated

from fastapi import Header

from holdfast.model.errors import InvalidInput, Outdated
from holdfast.server.context import System
from holdfast.upkeep.holding import holding

ETAG = '((W/)?"[0-9]{1,35}"|[0-9]{1,35})'
"""A revision as an ETag, as a regular expression."""
IfMatch = Annotated[
    str | None,
    Header(
        max_length=40,
        description="Only if it still has this ETag; `*`: any. Else 412.",
        examples=['"3"'],
        json_schema_extra={"pattern": rf"^(\*|{ETAG})$"},
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        max_length=40,
        description="`*`: only if there is none yet; else 412.",
        examples=["*"],
        json_schema_extra={"pattern": r"^\*$"},
    ),
]

Condition = Callable[[int], bool]
"""Whether a revision is one that the caller meant; 0: there is none."""

TTL = timedelta(seconds=30)


def condition(if_match: str | None, if_none_match: str | None = None) -> Condition | None:
    """What the headers of a request ask for; None: nothing."""
    if if_none_match not in (None, "*"):
        raise InvalidInput(f"If-None-Match {if_none_match!r} is not understood; send *, or leave it out")
    if if_none_match is not None:
        return lambda revision: not revision
    if if_match is None:
        return None
    if if_match == "*":
        return bool
    if not re.fullmatch(ETAG, if_match):
        raise InvalidInput(f"If-Match {if_match!r} is no ETag of ours; send it as GET answered it")
    number = int(if_match.removeprefix("W/").strip('"'))
    return lambda revision: revision == number


def check(asked: Condition | None, revision: int, consumer: str) -> None:
    """Raise `Outdated` where a consumer is not as the caller meant it."""
    if asked is not None and not asked(revision):
        now = f"has the revision {revision}" if revision else "does not exist"
        raise Outdated(f"consumer {consumer!r} {now}; look at it again, then change it")


@asynccontextmanager
async def alone(system: System, channel: str, consumer: str, asked: Condition | None) -> AsyncIterator[None]:
    """With a condition, nobody else who has one changes the consumer while the block runs: a policy, a pause
    and a name are three steps, and of two callers who saw the same revision one must lose."""
    if asked is None:
        yield
        return
    first, name = await system.letters.store(0), f"consumer:{channel}/{consumer}"
    async with holding(first, name, system.bus.name, TTL) as lock:
        if lock is None:
            raise Outdated(f"somebody else is changing consumer {consumer!r}; look at it again")
        yield

"""Access: what the log says, when a server begins, about who gets in."""

from __future__ import annotations

import logging

from holdfast.model.errors import HoldfastError
from holdfast.server.context import System

log = logging.getLogger(__name__)


async def tell_access(system: System) -> None:
    """Say it once, where there is no token yet."""
    try:
        if await system.tokens.locked():
            return
    except HoldfastError as error:
        log.warning("it is not known whether there are tokens: %s", error)
        return
    if system.local:
        log.warning("no token exists: everything is allowed to programs on this machine")
    else:
        log.warning("no token exists: everybody who reaches this server can read, and nobody can write")

"""Access: what the log says, when a server begins, about who gets in."""

from __future__ import annotations

import logging

from holdfast.model.errors import HoldfastError
from holdfast.server.context import System

log = logging.getLogger(__name__)


async def tell_access(system: System) -> None:
    """Say once what a setting opens, or that nobody can get in yet."""
    if system.config.server.open:
        log.warning("server.open: every program on this machine may do everything, without a token")
        return
    try:
        if not await system.tokens.exist():
            log.warning("no token exists, so that nobody gets in; make one: holdfast tokens create admin")
    except HoldfastError as error:
        log.warning("it is not known whether there are tokens: %s", error)

"""Cursors: where a list goes on, sealed for the caller who got it and for the list that it is from."""

from __future__ import annotations

import hmac

from holdfast.model.errors import InvalidInput
from holdfast.server.auth.caller import Caller
from holdfast.upkeep.secret import Secret

_SEAL = 32
SEAL = rf"[0-9a-f]{{{_SEAL}}}"
"""How every cursor begins, as a regular expression."""


class Cursors:
    """Seals cursors, and opens them again. Nobody can make one, or use somebody else's."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret

    async def seal(self, caller: Caller, page_of: str, after: str | None) -> str | None:
        """A cursor as its caller gets it; None where there is none."""
        return None if after is None else await self._mark(caller, page_of, after) + after

    async def open(self, caller: Caller, page_of: str, given: str | None) -> str | None:
        """A cursor as the list made it; raises `InvalidInput` where it was not sealed for this caller."""
        if given is None:
            return None
        after = given[_SEAL:]
        if not hmac.compare_digest(
            given[:_SEAL].encode(), (await self._mark(caller, page_of, after)).encode()
        ):
            raise InvalidInput("after is no place in this list; take the one that a page of it gave you")
        return after

    async def _mark(self, caller: Caller, page_of: str, after: str) -> str:
        return (await self._secret.sign("cursor", caller.actor, page_of, after))[:_SEAL]

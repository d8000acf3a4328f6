"""Signatures: a request proves that its sender has a token's secret, without sending it.

`Authorization: HF1 id=ID,time=SECONDS,signature=HEX`, where HEX is the HMAC-SHA256, under the SHA-256 of the
secret, of six lines: `HF1`, the method, the path and the query as they are sent, the time, and the SHA-256 of
the body. So a signature holds for one request only: not for another path, method, query or body.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from holdfast.model.errors import InvalidInput
from holdfast.server.auth.caller import Caller
from holdfast.upkeep.state import Secret

SCHEME = "HF1"
_HEADER = re.compile(
    r"HF1 id=([0-9a-f]{16}),time=(\d{1,12}(?:\.\d{1,9})?),signature=([0-9a-f]{64})", re.ASCII
)

_SEAL = 32
SEAL = rf"[0-9a-f]{{{_SEAL}}}"
"""How every cursor begins, as a regular expression."""


class Signed(NamedTuple):
    """What is signed."""

    method: str
    path: str
    query: str
    body: bytes


class Signature(NamedTuple):
    """What the header says."""

    token: str
    time: str
    digest: str


def parse(header: str) -> Signature | None:
    """The header's parts."""
    found = _HEADER.fullmatch(header)
    return None if found is None else Signature(*found.groups())


def sign(request: Signed, token_id: str, key: str, time: str) -> str:
    """The header for a request. The key is the SHA-256 of the secret, in hexadecimal."""
    return f"{SCHEME} id={token_id},time={time},signature={digest(request, key, time)}"


def digest(request: Signed, key: str, time: str) -> str:
    """The signature itself."""
    method, path, query, body = request
    lines = [SCHEME, method.upper(), path, query, time, hashlib.sha256(body).hexdigest()]
    return hmac.new(bytes.fromhex(key), "\n".join(lines).encode(), hashlib.sha256).hexdigest()


def holds(signature: Signature, request: Signed, keys: list[str]) -> bool:
    """Whether one of the keys made it; compared in constant time."""
    return any(hmac.compare_digest(digest(request, key, signature.time), signature.digest) for key in keys)


def end_of(signature: Signature, window: timedelta) -> datetime:
    """From when on its time is too old: until then it must be known that it was used."""
    return datetime.fromtimestamp(float(signature.time), UTC) + window


def timely(signature: Signature, now: datetime, window: timedelta) -> bool:
    """Whether its time is near enough to the store's."""
    return abs(float(signature.time) - now.timestamp()) <= window.total_seconds()


class SealedCursors:
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

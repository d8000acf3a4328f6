"""Tokens: issued once, kept as hashes in durable records of the first store, read at every call.

There is no cache: whatever was revoked, rotated or created holds from the next call on.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.scopes import Scope
from holdfast.model.upkeep import StateRecord

_TEXT = re.compile(r"hf_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_MOST = 10_000
_NAME = 200


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is stored. Its secret is not: only the secret's hash is."""

    id: str
    scope: Scope
    name: str
    """What it is for, in words."""
    hash: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    previous: str = ""
    """The hash of the secret before a rotation."""
    previous_until: datetime | None = None
    """Until when that one is valid too."""

    def hashes(self, now: datetime) -> list[str]:
        """The hashes of the secrets that are valid at this time; none where the token is not."""
        if self.revoked_at is not None or (self.expires_at is not None and now >= self.expires_at):
            return []
        overlap = self.previous_until is not None and now < self.previous_until
        return [self.hash, *([self.previous] if overlap else [])]

    def state(self, now: datetime) -> str:
        """In one word."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.hashes(now) else "expired"

    def to_json(self) -> dict[str, Any]:
        """The token without its hashes."""
        return {
            "id": self.id,
            "scope": self.scope.kind,
            "channel": self.scope.channel if self.scope.kind != "admin" else None,
            "consumer": self.scope.consumer or None,
            "name": self.name,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "revoked_at": self.revoked_at,
            "previous_until": self.previous_until,
        }


class Issued(NamedTuple):
    """A token, and its text: this is the only time that anybody sees it."""

    token: Token
    text: str


def new_secret() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    """What is stored of a secret. It is random: no salt and no slow hash are needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def key_of(text: str) -> str:
    """The hash of the secret in a token's text, `hf_ID_SECRET`."""
    return hash_of(text.split("_", 2)[2])


def encode(token: Token) -> dict[str, str]:
    times = {"expires_at": token.expires_at, "revoked_at": token.revoked_at}
    return {
        "kind": token.scope.kind,
        "channel": token.scope.channel,
        "consumer": token.scope.consumer,
        "name": token.name,
        "hash": token.hash,
        "previous": token.previous,
        "created_at": token.created_at.isoformat(),
        "previous_until": token.previous_until.isoformat() if token.previous_until else "",
        **{name: time.isoformat() if time else "" for name, time in times.items()},
    }


def decode(token_id: str, fields: Mapping[str, str]) -> Token:
    def time(name: str) -> datetime | None:
        return datetime.fromisoformat(fields[name]) if fields[name] else None

    return Token(
        token_id,
        Scope(fields["kind"], fields["channel"], fields["consumer"]),  # type: ignore[arg-type]  # written by `encode`
        fields["name"],
        fields["hash"],
        datetime.fromisoformat(fields["created_at"]),
        time("expires_at"),
        time("revoked_at"),
        fields["previous"],
        time("previous_until"),
    )


async def first_store(bus: Bus) -> Backend:
    """Where a deployment keeps who gets in; raises `Unavailable` while it does not answer."""
    return (await bus.partitions.ready(bus.partitions.all[0])).backend


class Tokens:
    """The tokens of a deployment. They live in its first store."""

    def __init__(self, bus: Bus, namespace: str) -> None:
        self._bus, self._prefix = bus, f"{namespace}.state.tokens."

    async def now(self) -> datetime:
        """The time that decides about expiry."""
        return await (await first_store(self._bus)).now()

    async def exist(self) -> bool:
        """Whether there is, or ever was, a token: expired and revoked ones count."""
        return bool(await (await first_store(self._bus)).records.due(self._prefix, 1))

    async def create(self, scope: Scope, *, name: str = "", lifetime: timedelta | None = None) -> Issued:
        """A new token."""
        if len(name) > _NAME or not name.isprintable():
            raise InvalidInput(f"a token's name is at most {_NAME} characters that can be printed")
        now, secret = await self.now(), new_secret()
        expires = None if lifetime is None else now + lifetime
        token = Token(secrets.token_hex(8), scope, name, hash_of(secret), now, expires)
        await self._put(token, 0)
        return Issued(token, f"hf_{token.id}_{secret}")

    async def all(self) -> list[Token]:
        """All tokens, the oldest first, expired and revoked ones included."""
        found = await (await first_store(self._bus)).records.due(self._prefix, _MOST)
        return [self._decode(record) for record in found]

    async def rotate(self, token_id: str, overlap: timedelta) -> Issued:
        """A new secret for a token; the one before stays valid for the overlap."""
        while True:
            record = await self._record(token_id)
            old, now, secret = self._decode(record), await self.now(), new_secret()
            if not old.hashes(now):
                raise InvalidInput(f"token {token_id} is {old.state(now)}; create another one")
            token = replace(old, hash=hash_of(secret), previous=old.hash, previous_until=now + overlap)
            if await self._put(token, record.revision):
                return Issued(token, f"hf_{token.id}_{secret}")

    async def revoke(self, token_id: str) -> Token:
        """From now on nobody gets in with it; a second revocation changes nothing."""
        while True:
            record = await self._record(token_id)
            token = self._decode(record)
            if token.revoked_at is not None:
                return token
            token = replace(token, revoked_at=await self.now())
            if await self._put(token, record.revision):
                return token

    async def valid(self, token_id: str) -> Token:
        """The token of an id; `NotFound` where there is none, `InvalidInput` where it is not valid now."""
        token, now = self._decode(await self._record(token_id)), await self.now()
        if not token.hashes(now):
            raise InvalidInput(f"token {token_id} is {token.state(now)}; create another one")
        return token

    async def find(self, token_id: str) -> Token | None:
        """The token of an id."""
        if not _ID.fullmatch(token_id):
            return None
        record = await (await first_store(self._bus)).records.get(self._prefix + token_id)
        return None if record is None else self._decode(record)

    async def verify(self, text: str) -> Token | None:
        """The token with this text, if it is valid now."""
        parts = _TEXT.fullmatch(text)
        if parts is None:
            return None
        token, given = await self.find(parts[1]), hash_of(parts[2])
        hashes = await self.hashes(token)
        return token if any(hmac.compare_digest(given, each) for each in hashes) else None

    async def hashes(self, token: Token | None) -> list[str]:
        """The hashes that are valid now. The store is asked for its time only where that matters."""
        if token is None:
            return []
        timed = token.expires_at is not None or token.previous_until is not None
        return token.hashes(await self.now() if timed else token.created_at)

    async def _record(self, token_id: str) -> StateRecord:
        key = self._prefix + token_id
        record = await (await first_store(self._bus)).records.get(key) if _ID.fullmatch(token_id) else None
        if record is None:
            raise NotFound(f"there is no token {token_id!r}; holdfast tokens list shows those that are")
        return record

    async def _put(self, token: Token, expected: int) -> bool:
        key, store = self._prefix + token.id, await first_store(self._bus)
        return await store.records.put(key, encode(token), expected, token.created_at) is not None

    def _decode(self, record: StateRecord) -> Token:
        return decode(record.key.removeprefix(self._prefix), record.fields)

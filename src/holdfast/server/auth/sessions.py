"""Sessions: what a browser holds instead of a token, and the single-use links that begin one.

A session is a random id with an end. The store has its hash, the token that it stands for and the hash of
that token's secret: a session ends with either of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.bus.client import Bus
from holdfast.model.upkeep import StateRecord
from holdfast.server.auth.tokens import Token, Tokens, first_store, hash_of, key_of, new_secret
from holdfast.server.limits import Buckets

LINK_LIFETIME = timedelta(minutes=10)
_BATCH = 500
_END = "expires_at"


class ExpiringRecords:
    """The records under one prefix. Whatever has expired is found no more, removed or not."""

    def __init__(self, bus: Bus, prefix: str) -> None:
        self._bus, self._prefix = bus, prefix

    async def add(self, key: str, fields: Mapping[str, str], expires: datetime) -> bool:
        """Write a record that is not there yet; False where it is. Of several at once, one gets True."""
        store = await first_store(self._bus)
        kept = {**fields, _END: expires.isoformat()}
        return await store.records.put(self._prefix + key, kept, 0, expires) is not None

    async def find(self, key: str) -> Mapping[str, str] | None:
        """The fields of a record, while it holds."""
        found = await self._valid(key)
        return None if found is None else found.fields

    async def take(self, key: str) -> Mapping[str, str] | None:
        """The fields of a record, which is removed; of several at once, one gets them."""
        found = await self._valid(key)
        if found is None:
            return None
        removed = await (await first_store(self._bus)).records.remove(found.key, found.revision)
        return found.fields if removed else None

    async def remove_expired(self) -> int:
        """Remove what has expired; returns how many records that were."""
        store, removed = await first_store(self._bus), 0
        while due := await store.records.due(self._prefix, _BATCH):
            for each in due:
                removed += await store.records.remove(each.key, each.revision)
            if len(due) < _BATCH:
                break
        return removed

    async def _valid(self, key: str) -> StateRecord | None:
        store = await first_store(self._bus)
        found = await store.records.get(self._prefix + key)
        if found is None or await store.now() >= datetime.fromisoformat(found.fields[_END]):
            return None
        return found


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A session that holds now."""

    key: str
    """The hash of its id."""
    token: Token
    linked: bool
    """Whether it began with a link, so that no secret of the token has travelled."""


def local_url(host: str, port: int) -> str:
    """Where a browser on this machine reaches a server that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def link_to(base: str, code: str) -> str:
    """The address that a person opens to follow a link."""
    return f"{base.rstrip('/')}/login?link={code}"


class Sessions:
    """The sessions of a deployment, and the links to them."""

    def __init__(self, bus: Bus, namespace: str, tokens: Tokens, lifetime: timedelta) -> None:
        self._tokens, self.lifetime = tokens, lifetime
        self._sessions = ExpiringRecords(bus, f"{namespace}.state.sessions.")
        self._links = ExpiringRecords(bus, f"{namespace}.state.links.")
        self.records = (self._sessions, self._links)
        self._begun = Buckets(1, at_once=20, what="sessions of this token")

    async def begin(self, text: str) -> str | None:
        """The id of a new session for a token's text; None where that is not valid. Raises `TooManyRequests`
        for a token that would fill the store with them."""
        token = await self._tokens.verify(text)
        if token is None:
            return None
        self._begun.take(token.id)
        return await self._begin(token.id, key_of(text), linked=False)

    async def link(self, token: Token) -> str:
        """A code that begins one session with this token, within ten minutes."""
        code, now = new_secret(), await self._tokens.now()
        fields = {"token": token.id, "key": token.hash}
        await self._links.add(hash_of(code), fields, now + LINK_LIFETIME)
        return code

    async def follow(self, code: str) -> str | None:
        """The id of a new session for a link's code, which is used up; None where it is not valid, or was
        used before."""
        fields = await self._links.take(hash_of(code))
        if fields is None or await self._token(fields) is None:
            return None
        return await self._begin(fields["token"], fields["key"], linked=True)

    async def find(self, session_id: str) -> BrowserSession | None:
        """The session with this id, if it holds now."""
        return await self.find_key(hash_of(session_id))

    async def find_key(self, key: str) -> BrowserSession | None:
        """The session with this hash of its id, if it holds now."""
        fields = await self._sessions.find(key)
        token = None if fields is None else await self._token(fields)
        return (
            None if fields is None or token is None else BrowserSession(key, token, fields["linked"] == "yes")
        )

    async def end(self, session_id: str) -> None:
        """End a session; one that is not there has ended."""
        await self._sessions.take(hash_of(session_id))

    async def _begin(self, token_id: str, key: str, *, linked: bool) -> str:
        session_id, now = new_secret(), await self._tokens.now()
        fields = {"token": token_id, "key": key, "linked": "yes" if linked else "no"}
        await self._sessions.add(hash_of(session_id), fields, now + self.lifetime)
        return session_id

    async def _token(self, fields: Mapping[str, str]) -> Token | None:
        """The token, while the secret that stood for it is valid."""
        token = await self._tokens.find(fields["token"])
        return token if fields["key"] in await self._tokens.hashes(token) else None

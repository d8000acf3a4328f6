"""A token: its scope, its times, and what is stored of its secret. Pure."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.model.scopes import Scope


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

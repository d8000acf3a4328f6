"""The caller: who asks, as a route and the audit see it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.scopes import Right, Scope, Verb, may
from holdfast.server.errors import Forbidden

CALLER = "holdfast.caller"
"""In the scope of a request: who was let in."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may do what one of these scopes allows."""

    actor: str
    """Who, for the audit: `token:ID`, `local` or `anonymous`."""
    scopes: tuple[Scope, ...]
    tokens: tuple[str, ...] = ()
    """The ids of the tokens that were shown."""
    session: str = ""
    """The key of the session that stands for them, where there is one."""

    def may(self, verb: Verb, channel: str | None = None, consumer: str | None = None) -> bool:
        """Whether the caller may do it there; without a channel: everywhere."""
        return may(self.scopes, verb, channel, consumer)

    def right(self, verb: Verb) -> Right:
        """Where the caller may do it: for lists and counts over many channels."""
        return Right(verb, (self.scopes,))

    def sees(self, channel: str, consumer: str | None = None) -> bool:
        """Whether it belongs into a list for this caller."""
        return self.may("read", channel, consumer)

    def require(self, verb: Verb, channel: str | None = None, consumer: str | None = None) -> None:
        """Raise `Forbidden` unless the caller may do it there: for what a request's body or query names."""
        if not self.may(verb, channel, consumer):
            raise Forbidden(verb, channel, consumer)

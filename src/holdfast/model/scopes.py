"""Scopes: what a token may do, and where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.model.errors import InvalidInput
from holdfast.model.names import check_name, compile_pattern, covers, is_audit, is_ours

Verb = Literal["read", "publish", "consume", "operate", "replay", "admin"]
Kind = Literal["admin", "producer", "channel", "consumer", "reader"]

VERBS: Mapping[Kind, frozenset[Verb]] = {
    "admin": frozenset(get_args(Verb)),
    "producer": frozenset({"publish"}),
    "channel": frozenset({"read", "publish", "consume", "operate"}),
    "consumer": frozenset({"read", "consume"}),
    "reader": frozenset({"read"}),
}
"""What each kind may do, where its scope covers the channel and the consumer. `operate` is requeue, redrive,
patch, purge and cancel."""
EVERYTHING = ">"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a token is for: a kind, and what it covers."""

    kind: Kind
    channel: str = EVERYTHING
    """For a producer and a reader a pattern, for a channel and a consumer the channel's name. A pattern
    covers what Holdfast writes itself only where it names it; to read everything is to read all but the
    audit."""
    consumer: str = ""
    """For a consumer: its name."""

    def allows(self, verb: Verb, channel: str | None = None, consumer: str | None = None) -> bool:
        """Return whether a token of this scope may do it; without a channel: on all channels."""
        return verb in VERBS[self.kind] and self._covers(verb, channel, consumer)

    def _covers(self, verb: Verb, channel: str | None, consumer: str | None) -> bool:
        match self.kind:
            case "admin":
                return True
            case "producer" | "reader" if self.channel == EVERYTHING:
                return channel is None or not is_ours(channel) or (verb == "read" and not is_audit(channel))
            case "producer" | "reader":
                return channel is not None and covers(self.channel, channel)
            case "channel":
                return channel == self.channel
            case "consumer":
                return (channel, consumer) == (self.channel, self.consumer)

    def __str__(self) -> str:
        return " ".join(part for part in (self.kind, self.channel, self.consumer) if part and part != ">")


def may(scopes: Iterable[Scope], verb: Verb, channel: str | None = None, consumer: str | None = None) -> bool:
    """Return whether one of the scopes allows it; without a channel: on all channels."""
    return any(scope.allows(verb, channel, consumer) for scope in scopes)


ADMIN = Scope("admin")
ANYBODY_READS = Scope("reader")


@dataclass(frozen=True, slots=True)
class Right:
    """A verb, and where it may be done: where each of these is allowed it by one of its scopes."""

    verb: Verb
    rights: tuple[tuple[Scope, ...], ...] = ((ADMIN,),)

    def holds(self, channel: str | None = None, consumer: str | None = None) -> bool:
        """Return whether it may be done there; without a channel: on all channels, but for those that a scope
        must name. So check again whatever is found on all channels."""
        return all(may(scopes, self.verb, channel, consumer) for scopes in self.rights)


EVERYWHERE = Right("admin")
"""The right of a program that has the stores themselves."""


def scope_of(kind: str, channel: str | None, consumer: str | None) -> Scope:
    """Return the scope of these values. Raises `InvalidInput` where they make no sense together."""
    if kind not in VERBS:
        raise InvalidInput(f"scope {kind!r} is unknown; use one of {', '.join(VERBS)}")
    if (consumer is not None) != (kind == "consumer"):
        raise InvalidInput("a consumer's name belongs to the scope 'consumer', and only to that one")
    match kind:
        case "admin" if channel is not None:
            raise InvalidInput("the scope 'admin' covers every channel; leave the channel out")
        case "producer" | "reader" if channel is not None:
            compile_pattern(channel)
        case "channel" | "consumer" if channel is None:
            raise InvalidInput(f"the scope {kind!r} is for one channel; name it")
        case "channel" | "consumer":
            check_name(channel)
    if consumer is not None:
        check_name(consumer, "consumer")
    return Scope(kind, channel or EVERYTHING, consumer or "")  # type: ignore[arg-type]  # checked above

"""The guard: every route says what it needs, and nobody gets past without it."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from starlette.requests import Request

from holdfast.model.errors import HoldfastError
from holdfast.model.names import check_name
from holdfast.model.scopes import ADMIN, ANYBODY_READS, VERBS, Verb
from holdfast.server.auth.caller import CALLER, Caller
from holdfast.server.auth.credentials import CHANNEL_TOKEN, CONSUMER_TOKEN, Shown, shown
from holdfast.server.context import Known, System
from holdfast.server.paths import path_of
from holdfast.server.queries import check_query
from holdfast.server.refusals import Denied, Forbidden, Unauthorized

log = logging.getLogger(__name__)

_NOBODY = "nobody"
_SHOWN = 200
_PROXIED = frozenset({"forwarded", "via", "x-real-ip"})


class Need:
    """A dependency that lets callers in who may do something, and answers who it is."""

    def __init__(self, verb: Verb, *, filtered: bool, pair: bool, scrape: bool, page: bool) -> None:
        self.verb, self.filtered, self.pair, self.scrape, self.page = verb, filtered, pair, scrape, page

    async def admit(self, request: Request, system: System) -> None:
        """Let a caller in, or raise `Denied`: before anything of the request's body is read, but for a
        signature, which is over the body."""
        caller = None
        try:
            found = await shown(request, system, page=self._by_session(request))
            caller = _known(found, system) or _stranger(request, system, scrape=self.scrape)
            self._check(request, caller, found)
            if not self.page:
                check_query(request)
            request.scope[CALLER] = caller
        except Denied as refusal:
            await _tell(request, system, caller, refusal)
            raise

    async def __call__(self, request: Request, system: Known) -> AsyncIterator[Caller]:
        """For the route: who was let in. What the route itself refuses is told too."""
        caller: Caller = request.scope[CALLER]
        try:
            yield caller
        except Denied as refusal:
            await _tell(request, system, caller, refusal)
            raise

    def _check(self, request: Request, caller: Caller, found: Shown) -> None:
        channel, consumer = named(request)
        if channel is None and self.filtered:
            if not any(self.verb in VERBS[scope.kind] for scope in caller.scopes):
                raise Forbidden(self.verb)
            return
        caller.require(self.verb, channel, consumer)
        alone = found.bearer is not None and found.bearer.scope.allows(self.verb, channel, consumer)
        if self.pair and found.tokens and not alone:
            _check_pair(found, channel, consumer)

    def _by_session(self, request: Request) -> bool:
        return self.page or (self.scrape and "Authorization" not in request.headers)


def needs(
    verb: Verb, *, filtered: bool = False, pair: bool = False, scrape: bool = False, page: bool = False
) -> Need:
    """A route's demand: `caller: Annotated[Caller, Depends(needs("publish"))]`.

    The channel and the consumer are those of the path (`channel` or `channelId`, `consumer` or `consumerId`).
    Without a channel in the path the caller must be allowed to do it on all channels; unless `filtered`: then
    the route itself asks `caller.sees` for each thing that it shows, or `caller.require` for what a body or
    query names. `pair` is the rule of the two `X-Broker-…-Token` headers: both must be there. `scrape`
    is for metrics, which a setting opens to everybody, and which a session may read too. `page` is for pages,
    which have a session instead of headers.
    """
    return Need(verb, filtered=filtered, pair=pair, scrape=scrape, page=page)


async def anybody() -> None:
    """The demand of a route that is open to all."""


async def caller_of(request: Request, system: System) -> Caller:
    """Whoever asks a route that is open to all, and tells some more; `Unauthorized` for a stranger."""
    found = await shown(request, system)
    return _known(found, system) or _stranger(request, system)


async def check_again(system: System, caller: Caller) -> None:
    """Raise `Unauthorized` where the caller would not be let in any more: for calls that wait."""
    if caller.session and await system.sessions.find_key(caller.session) is None:
        raise Unauthorized("the session has ended meanwhile; sign in again")
    for each in caller.tokens:
        if not await system.tokens.hashes(await system.tokens.find(each)):
            raise Unauthorized("the token has expired or was revoked while the call waited; use another one")


def named(request: Request) -> tuple[str | None, str | None]:
    """The channel and the consumer that the path names."""
    given = request.path_params
    channel, consumer = (given.get(name, given.get(f"{name}Id")) for name in ("channel", "consumer"))
    if channel is not None:
        check_name(channel)
    if consumer is not None:
        check_name(consumer, "consumer")
    return channel, consumer


def _known(found: Shown, system: System) -> Caller | None:
    """Whoever shows tokens; each of them pays for the request."""
    for token in found.tokens:
        system.buckets.take(token.id)
    ids = tuple(token.id for token in found.tokens)
    actor = "+".join(f"token:{each}" for each in ids)
    scopes = tuple(token.scope for token in found.tokens)
    return Caller(actor, scopes, ids, found.session) if actor else None


def _stranger(request: Request, system: System, *, scrape: bool = False) -> Caller:
    """Somebody without a token is nobody, unless a setting says otherwise. Being on this machine alone never
    counts: behind a proxy here, everybody is."""
    server = system.config.server
    if scrape and server.open_metrics:
        return Caller("anonymous", (ANYBODY_READS,))
    if server.open and _from_here(request):
        return Caller("local", (ADMIN,))
    raise Unauthorized("this needs a token; send it as 'Authorization: Bearer TOKEN'")


async def _tell(request: Request, system: System, caller: Caller | None, refusal: Denied) -> None:
    """Log who was refused what; keep it too where it is known who it was: strangers cannot fill a store."""
    actor, path = caller.actor if caller else _NOBODY, request.url.path
    where = request.client.host if request.client else "-"
    tell_refusal(system, refusal.status, actor, where, path, str(refusal))
    if caller is None or caller.actor == "anonymous":
        return
    try:
        action = f"{request.method} {path_of(request.scope)}"
        await system.audit.refused(actor, action, path, str(refusal))
    except HoldfastError as error:
        log.warning("the audit of a refused call was not written: %s", error)


def tell_refusal(system: System, status: int, actor: str, where: str, path: str, why: str) -> None:
    """Log that somebody was refused something: no more often, and at no more length, than a log can bear."""
    more = system.lines.take("refused strangers" if actor == _NOBODY else "refused tokens")
    if more is not None:
        log.warning("refused %s: %s from %s on %s: %s%s", status, actor, where, path[:_SHOWN], why, more)


def _check_pair(found: Shown, channel: str | None, consumer: str | None) -> None:
    """Both tokens must be there, and the second be the consumer's. One of them allows what is asked for: the
    caller may do it, and not by a bearer token."""
    if found.channel is None or found.consumer is None:
        raise Unauthorized(f"this needs both {CHANNEL_TOKEN} and {CONSUMER_TOKEN}, or a bearer token")
    if not found.consumer.scope.allows("consume", channel, consumer):
        raise Forbidden("consume", channel, consumer)


def _from_here(request: Request) -> bool:
    """Whether a program on this machine asks, as far as its request tells. A web page that a browser here has
    open names its own host, also where that host's name leads to this machine; most proxies add a header."""
    if any(name.startswith("x-forwarded-") or name in _PROXIED for name in request.headers):
        return False
    host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
    return _is_loopback(f"//{host}") and (origin is None or _is_loopback(origin))


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

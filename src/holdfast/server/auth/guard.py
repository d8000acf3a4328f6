"""The guard: every route says what it needs, and nobody gets past without it."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request

from holdfast.model.errors import HoldfastError
from holdfast.model.names import check_name
from holdfast.model.scopes import ADMIN, ANYBODY_READS, VERBS, Verb
from holdfast.server.auth import signing
from holdfast.server.auth.caller import CALLER, Caller
from holdfast.server.auth.sessions import BrowserSession
from holdfast.server.auth.tokens import Token
from holdfast.server.bodies import BoundedRequest
from holdfast.server.errors import Denied, Forbidden, Unauthorized
from holdfast.server.problems import is_json
from holdfast.server.routes import check_query, path_of, route_of
from holdfast.server.system import Known, System

log = logging.getLogger(__name__)

CHANNEL_TOKEN, CONSUMER_TOKEN = "X-Broker-Channel-Token", "X-Broker-Consumer-Token"
COOKIE, SECURE_COOKIE = "holdfast_session", "__Host-holdfast_session"
"""Where a browser keeps its session. Only pages look at it, so that no other site can use it. A browser takes
the second one over TLS only, and from this host only. The first one has the server's port in its name:
browsers send it to every port of the host, and two servers there would end each other's sessions."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_NOBODY = "nobody"
_SHOWN = 200
_PROXIED = frozenset({"forwarded", "via", "x-real-ip"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """The valid tokens of a request, by the header that had them."""

    bearer: Token | None = None
    channel: Token | None = None
    consumer: Token | None = None
    session: str = ""
    """The key of the session, where the bearer's token comes from one."""

    @property
    def tokens(self) -> list[Token]:
        """All of them, each once."""
        found = {token.id: token for token in (self.bearer, self.channel, self.consumer) if token}
        return list(found.values())


async def read_credentials(request: Request, system: System, *, page: bool = False) -> Credentials:
    """The credentials of a request, for a page its session. Raises `Unauthorized` where one is not valid."""
    if page:
        session = await _session(request, system)
        return Credentials() if session is None else Credentials(session.token, session=session.key)
    return Credentials(
        await _bearer(request, system),
        await _header(request, system, CHANNEL_TOKEN),
        await _header(request, system, CONSUMER_TOKEN),
    )


def cookie_of(request: Request) -> str:
    """The name of the cookie that counts for this request: over TLS, one that plain HTTP cannot set."""
    if request.url.scheme == "https":
        return SECURE_COOKIE
    _, port = request.scope.get("server") or (None, None)
    return COOKIE if port is None else f"{COOKIE}_{port}"


async def _bearer(request: Request, system: System) -> Token | None:
    text = _one(request, "Authorization")
    if text is None:
        return None
    scheme, _, rest = text.partition(" ")
    if scheme == signing.SCHEME:
        return await _signed(request, system, text)
    if scheme.lower() != "bearer":
        raise Unauthorized("Authorization is neither 'Bearer TOKEN' nor a signature; send one of them")
    return await _plain(system, rest.strip())


async def _session(request: Request, system: System) -> BrowserSession | None:
    held = request.cookies.get(cookie_of(request))
    if held is None:
        return None
    session = await system.sessions.find(held)
    if session is None or (system.config.server.require_signatures and not session.linked):
        raise Unauthorized("the session is not valid: unknown, expired or ended; sign in again")
    return session


async def _header(request: Request, system: System, name: str) -> Token | None:
    text = _one(request, name)
    return None if text is None else await _plain(system, text)


async def _plain(system: System, text: str) -> Token:
    if system.config.server.require_signatures:
        raise Unauthorized("this server wants signed requests, without the token itself; sign them")
    token = await system.tokens.verify(text)
    if token is None:
        raise Unauthorized("the token is not valid: unknown, expired or revoked; use another one")
    return token


async def _signed(request: Request, system: System, header: str) -> Token:
    """The token that signed a request. For strangers, and for those who come too late, no body is read."""
    invalid = Unauthorized("the signature is not valid for this request; sign method, path, query and body")
    signature, window = signing.parse(header), system.config.server.signature_window
    if signature is None:
        raise invalid
    if not signing.timely(signature, await system.tokens.now(), window):
        raise Unauthorized("the signature's time is too far from now; sign the request again")
    token = await system.tokens.find(signature.token)
    keys = await system.tokens.hashes(token)
    if token is None or not keys or not signing.holds(signature, await _content(request), keys):
        raise invalid
    end = signing.end_of(signature, window)
    if request.method not in _SAFE and not await system.signatures.add(signature.digest, {}, end):
        raise Unauthorized("the signature was used before; sign the request again")
    return token


async def _content(request: Request) -> signing.Signed:
    path = request.scope.get("raw_path") or request.scope["path"].encode()
    query: bytes = request.scope["query_string"]
    return signing.Signed(
        request.method, path.decode("latin-1"), query.decode("latin-1"), await request.body()
    )


def _one(request: Request, name: str) -> str | None:
    """A header's value; one that is there twice could mean two things."""
    found = request.headers.getlist(name)
    if len(found) > 1:
        raise Unauthorized(f"{name} is there more than once; send it once")
    return found[0] if found else None


class Need:
    """A route's demand: `caller: Annotated[Caller, Depends(needs("publish"))]`.

    The channel and the consumer are those of the path (`channel` or `channelId`, `consumer` or `consumerId`).
    Without a channel in the path the caller must be allowed to do it on all channels; unless `filtered`: then
    the route itself asks `caller.sees` for each thing that it shows, or `caller.require` for what a body or
    query names. `pair` is the rule of the two `X-Broker-…-Token` headers: both must be there. `scrape`
    is for metrics, which a setting opens to everybody, and which a session may read too. `page` is for pages,
    which have a session instead of headers.
    """

    def __init__(
        self,
        verb: Verb,
        *,
        filtered: bool = False,
        pair: bool = False,
        scrape: bool = False,
        page: bool = False,
    ) -> None:
        self.verb, self.filtered, self.pair, self.scrape, self.page = verb, filtered, pair, scrape, page

    async def admit(self, request: Request, system: System) -> None:
        """Let a caller in, or raise `Denied`: before anything of the request's body is read, but for a
        signature, which is over the body."""
        caller = None
        try:
            by_session = self.page or (self.scrape and "Authorization" not in request.headers)
            found = await read_credentials(request, system, page=by_session)
            caller = _with_tokens(found, system) or _without_token(request, system, scrape=self.scrape)
            self._check(request, caller, found)
            if not self.page:
                check_query(request)
            request.scope[CALLER] = caller
        except Denied as refusal:
            await _report(request, system, caller, refusal)
            raise

    async def __call__(self, request: Request, system: Known) -> AsyncIterator[Caller]:
        """For the route: who was let in. What the route itself refuses is reported too."""
        caller: Caller = request.scope[CALLER]
        try:
            yield caller
        except Denied as refusal:
            await _report(request, system, caller, refusal)
            raise

    def _check(self, request: Request, caller: Caller, found: Credentials) -> None:
        channel, consumer = names_in_path(request)
        if channel is None and self.filtered:
            if not any(self.verb in VERBS[scope.kind] for scope in caller.scopes):
                raise Forbidden(self.verb)
            return
        caller.require(self.verb, channel, consumer)
        alone = found.bearer is not None and found.bearer.scope.allows(self.verb, channel, consumer)
        if self.pair and found.tokens and not alone:
            _check_pair(found, channel, consumer)


needs = Need

Publishes = Annotated[Caller, Depends(needs("publish"))]
Consumes = Annotated[Caller, Depends(needs("consume"))]
Reads = Annotated[Caller, Depends(needs("read"))]
ReadsFiltered = Annotated[Caller, Depends(needs("read", filtered=True))]
Operates = Annotated[Caller, Depends(needs("operate"))]
OperatesFiltered = Annotated[Caller, Depends(needs("operate", filtered=True))]
"""What most routes demand: `async def route(caller: Reads)`."""


async def anybody() -> None:
    """The demand of a route that is open to all."""


def demands(dependant: Dependant) -> Iterator[object]:
    """What a route demands of its callers: a `Need`, or `anybody`."""
    for each in dependant.dependencies:
        if isinstance(each.call, Need) or each.call is anybody:
            yield each.call
        yield from demands(each)


class GuardedRoute(APIRoute):
    """A route that lets its caller in, then reads the body up to its limits, and then hands over to the
    framework. That would read and parse the body before it asks what the route needs."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        serve = super().get_route_handler()

        async def handle(request: Request) -> Response:
            bounded = BoundedRequest(request.scope, request.receive)
            await _admit(bounded)
            await self.prepare(bounded)
            return await serve(bounded)

        return handle

    async def prepare(self, request: BoundedRequest) -> None:
        """Read the body, where the route takes one."""
        takes_one = route_of(request.scope).body_field is not None
        if takes_one and is_json(request.headers.get("content-type", "")):
            await request.read_json()


class Router(APIRouter):
    """A router of guarded routes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"route_class": GuardedRoute, **options})


async def _admit(request: Request) -> None:
    """Raise what the guard raises where the caller may not ask this route."""
    for need in demands(route_of(request.scope).dependant):
        if isinstance(need, Need):
            await need.admit(request, request.app.state.system)


async def caller_of(request: Request, system: System) -> Caller:
    """The caller of a route that is open to all, but shows some more. Raises `Unauthorized` for strangers."""
    found = await read_credentials(request, system)
    return _with_tokens(found, system) or _without_token(request, system)


async def check_again(system: System, caller: Caller) -> None:
    """Raise `Unauthorized` where the caller would not be let in any more: for calls that wait."""
    if caller.session and await system.sessions.find_key(caller.session) is None:
        raise Unauthorized("the session has ended meanwhile; sign in again")
    for each in caller.tokens:
        if not await system.tokens.hashes(await system.tokens.find(each)):
            raise Unauthorized("the token has expired or was revoked while the call waited; use another one")


def names_in_path(request: Request) -> tuple[str | None, str | None]:
    """The channel and the consumer that the path names."""
    given = request.path_params
    channel, consumer = (given.get(name, given.get(f"{name}Id")) for name in ("channel", "consumer"))
    if channel is not None:
        check_name(channel)
    if consumer is not None:
        check_name(consumer, "consumer")
    return channel, consumer


def _with_tokens(found: Credentials, system: System) -> Caller | None:
    """The caller who shows tokens; each of them pays for the request."""
    for token in found.tokens:
        system.buckets.take(token.id)
    ids = tuple(token.id for token in found.tokens)
    actor = "+".join(f"token:{each}" for each in ids)
    scopes = tuple(token.scope for token in found.tokens)
    return Caller(actor, scopes, ids, found.session) if actor else None


def _without_token(request: Request, system: System, *, scrape: bool = False) -> Caller:
    """A caller without a token, where a setting lets one in. Being on this machine alone never counts: behind
    a proxy here, everybody is."""
    server = system.config.server
    if scrape and server.open_metrics:
        return Caller("anonymous", (ANYBODY_READS,))
    if server.open and _is_local(request):
        return Caller("local", (ADMIN,))
    raise Unauthorized("this needs a token; send it as 'Authorization: Bearer TOKEN'")


async def _report(request: Request, system: System, caller: Caller | None, refusal: Denied) -> None:
    """Log who was refused what; audit it where it is known who it was: strangers cannot fill a store."""
    actor, path = caller.actor if caller else _NOBODY, request.url.path
    where = request.client.host if request.client else "-"
    log_refusal(system, refusal.status, actor, where, path, str(refusal))
    if caller is None or caller.actor == "anonymous":
        return
    try:
        action = f"{request.method} {path_of(request.scope)}"
        await system.audit.refused(actor, action, path, str(refusal))
    except HoldfastError as error:
        log.warning("the audit of a refused call was not written: %s", error)


def log_refusal(system: System, status: int, actor: str, where: str, path: str, why: str) -> None:
    """Log that somebody was refused something: no more often, and at no more length, than a log can bear."""
    more = system.lines.take("refused strangers" if actor == _NOBODY else "refused tokens")
    if more is not None:
        log.warning("refused %s: %s from %s on %s: %s%s", status, actor, where, path[:_SHOWN], why, more)


def _check_pair(found: Credentials, channel: str | None, consumer: str | None) -> None:
    """Both tokens must be there, and the second be the consumer's. One of them allows what is asked for: the
    caller may do it, and not by a bearer token."""
    if found.channel is None or found.consumer is None:
        raise Unauthorized(f"this needs both {CHANNEL_TOKEN} and {CONSUMER_TOKEN}, or a bearer token")
    if not found.consumer.scope.allows("consume", channel, consumer):
        raise Forbidden("consume", channel, consumer)


def _is_local(request: Request) -> bool:
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


async def log_access(system: System) -> None:
    """Log, at a start, what a setting opens, or that nobody can get in yet."""
    if system.config.server.open:
        log.warning("server.open: every program on this machine may do everything, without a token")
        return
    try:
        if not await system.tokens.exist():
            log.warning("no token exists, so that nobody gets in; make one: holdfast tokens create admin")
    except HoldfastError as error:
        log.warning("it is not known whether there are tokens: %s", error)

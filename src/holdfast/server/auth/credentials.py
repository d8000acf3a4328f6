"""Credentials: what a request shows, and the tokens behind it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from holdfast.server.auth import signing
from holdfast.server.auth.sessions import Session
from holdfast.server.auth.token import Token
from holdfast.server.context import System
from holdfast.server.refusals import Unauthorized

CHANNEL_TOKEN, CONSUMER_TOKEN = "X-Broker-Channel-Token", "X-Broker-Consumer-Token"
COOKIE, SECURE_COOKIE = "holdfast_session", "__Host-holdfast_session"
"""Where a browser keeps its session. Only pages look at it, so that no other site can use it. A browser takes
the second one over TLS only, and from this host only. The first one has the server's port in its name:
browsers send it to every port of the host, and two servers there would end each other's sessions."""
_SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Shown:
    """The valid tokens of a request, by where they stood."""

    bearer: Token | None
    channel: Token | None
    consumer: Token | None
    session: str = ""
    """The key of the session, where the bearer's token comes from one."""

    @property
    def tokens(self) -> list[Token]:
        """All of them, each once."""
        found = {token.id: token for token in (self.bearer, self.channel, self.consumer) if token}
        return list(found.values())


async def shown(request: Request, system: System, *, page: bool = False) -> Shown:
    """What a request shows; anything that is shown must be valid. A page's callers show a session only."""
    if page:
        session = await _session(request, system)
        return Shown(None, None, None) if session is None else Shown(session.token, None, None, session.key)
    bearer = await _bearer(request, system)
    channel = await _header(request, system, CHANNEL_TOKEN)
    return Shown(bearer, channel, await _header(request, system, CONSUMER_TOKEN))


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


async def _session(request: Request, system: System) -> Session | None:
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

"""Redaction: URLs of stores in messages and logs, without their secrets."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

_NAMED = ("postgresql", "postgres", "redis", "rediss")
"""Schemes whose URLs begin with a user. Elsewhere the first word may be a secret: `nats://TOKEN@host`."""
_SCHEME = re.compile(r"[a-z]{1,20}$", re.IGNORECASE)
_USER = re.compile(r"[A-Za-z0-9_.~%+-]*")
_SECRET = "password|passwd|passphrase|secret|token|credential"
_PARAMETER = re.compile(rf"([?&][a-z_]{{0,40}}(?:{_SECRET})[a-z_]{{0,40}}=)[^&]*", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(?::([0-9]*))?")
_UNREADABLE = "the given URL"


def mask(text: str) -> str:
    """The text with `***` for the secrets of URLs in it.

    What stands between the first `://` and the last `@` is hidden, whatever characters it has, except a user
    where it can be nothing else. It hides too much rather than too little.
    """
    before, separator, after = text.partition("://")
    secret, at, host = after.rpartition("@")
    if at:
        host = "***" if _PARAMETER.search(secret) else host  # or it is the rest of that parameter
        text = f"{before}{separator}{_user(before, secret)}@{host}"
    return _PARAMETER.sub(r"\1***", text)


def _user(before: str, secret: str) -> str:
    """What is shown of `user:password` or `user`."""
    scheme, (user, colon, _) = _SCHEME.search(before[-20:]), secret.partition(":")
    if scheme is None or scheme[0] not in _NAMED or not _USER.fullmatch(user):
        return "***"
    return f"{user}:***" if colon else user


def address(url: str, port: int | None = None) -> str:
    """Hosts, ports and path of a store's URL. `port` is shown for a host without one, if it is given."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "")
    except ValueError:
        return _UNREADABLE
    shown = []
    for found in map(_HOST.fullmatch, hosts.split(",")):
        if found is None or not parts.scheme or "@" in parts.path:  # it may be a part of a password
            return _UNREADABLE
        number = found[2] or port
        shown.append((found[1] or "localhost") + (f":{number}" if number else ""))
    return ",".join(shown) + parts.path

"""URLs of stores: split, checked, and shown without their secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from holdfast.model.errors import InvalidInput

SCHEMES = ("postgresql", "postgres", "redis", "rediss", "nats", "tls")
_BETWEEN = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*://)")
_NAMED = ("postgresql", "postgres", "redis", "rediss")
"""Schemes where the first word is always a user; elsewhere it may be a secret: `nats://TOKEN@host`."""
_SCHEME = re.compile(r"[a-z]{1,20}$", re.IGNORECASE)
_USER = re.compile(r"[A-Za-z0-9_.~%+-]*")
_SECRET = "password|passwd|passphrase|secret|token|credential"
_PARAMETER = re.compile(rf"([?&][a-z_]{{0,40}}(?:{_SECRET})[a-z_]{{0,40}}=)[^&]*", re.IGNORECASE)
_ESCAPES = "'/' as %2F, '#' as %23, '?' as %3F, an at sign as %40 and a blank as %20"


def split_urls(given: str | Sequence[str]) -> list[str]:
    """Every store's URL on its own, each checked, none twice.

    A comma before a scheme separates stores; others belong to a URL with several hosts.
    """
    texts = [given] if isinstance(given, str) else given
    urls = [check_url(url) for text in texts for url in _BETWEEN.split(text.strip())]
    if len(set(urls)) != len(urls):
        raise InvalidInput("the same store is listed twice; name each partition once")
    return urls


def check_url(url: str) -> str:
    """The URL, as it is. `InvalidInput` where it cannot be read in one way only, before any library reads it:
    part of a password would be taken for a host or a port, and be told in its errors. Ours tell no value.
    """
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):  # a URL may name several
            urlsplit(f"//{host}").port  # noqa: B018 - reading it is the check
        readable = not _ambiguous(parts) and not any(each.isspace() for each in url)
    except ValueError:
        readable = False
    if not readable:
        raise InvalidInput(
            "the URL cannot be read; write postgresql://user@host:5432/database, and in a user or password "
            f"write {_ESCAPES}"
        )
    if parts.scheme not in SCHEMES or "://" not in url:
        raise InvalidInput(
            f"no backend for the URL scheme {parts.scheme!r}; use postgresql://user@host/database, "
            "redis://host:6379/0 or nats://host:4222"
        )
    return url


def _ambiguous(parts: SplitResult) -> bool:
    """Whether a character of a user or password was not escaped: an `@` follows what can only be the first
    part of it. Of several `@` libpq takes the first one, and others the last."""
    authority, rest = parts.netloc, "".join(parts[2:])
    cut_short = authority != "" and "@" not in authority and "@" in rest
    several = authority.count("@") > 1 and parts.scheme.startswith("postgres")
    return cut_short or several


def mask(text: str) -> str:
    """The text without the secrets of URLs in it: what stands between the first `://` and the last `@` is
    not shown, whatever characters it has; a user is where it can be nothing else. It rather hides too much.
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

"""URLs of stores: split, checked, and shown without their secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.model.errors import InvalidInput

SCHEMES = ("postgresql", "postgres", "redis", "rediss", "nats", "tls")
_BETWEEN = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*://)")
_WORD = re.compile(r"\S+")
_USER = re.compile(r"://[^:/@]*:")
_PARAMETER = re.compile(r"([?&][a-z_]{0,40}(?:password|secret|token)[a-z_]{0,40}=)[^&\s]*", re.IGNORECASE)


def split_urls(given: str | Sequence[str]) -> list[str]:
    """Every store's URL on its own, each checked, none twice.

    A comma before a scheme separates stores; others belong to a URL with several hosts.
    """
    texts = [given] if isinstance(given, str) else given
    urls = [_checked(url) for text in texts for url in _BETWEEN.split(text.strip())]
    if len(set(urls)) != len(urls):
        raise InvalidInput("the same store is listed twice; name each partition once")
    return urls


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):  # a URL may name several
            urlsplit(f"//{host}").port  # noqa: B018 - reading it is the check
    except ValueError as error:  # the URL itself stays unsaid: it may hold a password
        raise InvalidInput(
            f"the URL cannot be read: {error}; write postgresql://user@host/database"
        ) from None
    if parts.scheme not in SCHEMES or "://" not in url:
        raise InvalidInput(
            f"no backend for the URL scheme {parts.scheme!r}; use postgresql://user@host/database, "
            "redis://host:6379/0 or nats://host:4222"
        )
    return url


def mask(text: str) -> str:
    """The text without the passwords of URLs in it."""
    return _PARAMETER.sub(r"\1***", _WORD.sub(_without_password, text))


def _without_password(word: re.Match[str]) -> str:
    """A word without what stands between its first user and its last host. Each part of it is read once."""
    text, end = word[0], word[0].rfind("@")
    user = _USER.search(text, 0, end) if end >= 0 else None
    return text if user is None else f"{text[: user.end()]}***{text[end:]}"

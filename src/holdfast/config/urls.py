"""URLs of stores: split, checked, and shown without their secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.model.errors import InvalidInput

SCHEMES = ("postgresql", "postgres", "redis", "rediss", "nats", "tls")
_BETWEEN = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*://)")
_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):\S*@")
_PARAMETER = re.compile(r"([?&][a-z_]*(?:password|secret|token)[a-z_]*=)[^&\s]*", re.IGNORECASE)


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
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))

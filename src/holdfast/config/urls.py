"""URLs of stores: split and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from holdfast.model.errors import InvalidInput

SCHEMES: dict[str, str] = {}
"""The schemes that have a backend, each with an example of a URL. `holdfast.wiring.register` adds them."""
_BETWEEN = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*://)")
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
    """The URL, as it is.

    Raises `InvalidInput` where it can be read in more than one way, before any library reads it: part of a
    password would be taken for a host or a port, and appear in the library's errors. Ours show no value.
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
        *others, last = dict.fromkeys(SCHEMES.values())
        raise InvalidInput(
            f"no backend for the URL scheme {parts.scheme!r}; use {', '.join(others)} or {last}"
        )
    return url


def _ambiguous(parts: SplitResult) -> bool:
    """Whether a character of a user or password was not escaped: an `@` follows what can only be the first
    part of it. Of several `@` libpq takes the first one, and others the last."""
    authority, rest = parts.netloc, "".join(parts[2:])
    cut_short = authority != "" and "@" not in authority and "@" in rest
    several = authority.count("@") > 1 and parts.scheme.startswith("postgres")
    return cut_short or several

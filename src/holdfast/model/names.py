"""Names of channels and consumers, the patterns that select channels, and text that every store can hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from holdfast.model.errors import InvalidInput, InvalidName

NAME = r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9_-]+)*"
"""What a name is, as a regular expression; it has at most `LONGEST` characters."""
_NAME = re.compile(NAME)
_TOKEN = re.compile(r"[a-z0-9_-]+")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SYSTEM, _DEAD_LETTERS = ".events.system.", "._deadletter."
_OURS = (_SYSTEM, _DEAD_LETTERS)
_AUDIT = f"{_SYSTEM}audit"
LONGEST = 128


@lru_cache(maxsize=4096)
def check_name(name: str, what: str = "channel") -> str:
    """Return `name` if it can become a key or a path on every backend, else raise `InvalidName`."""
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{what} name {name!r} is not usable: write lower-case letters, digits, '.', '_' and '-', "
            "at most 128, starting with a letter or digit, with no empty token between dots"
        )
    return name


def check_token(token: str, what: str) -> str:
    """Return `token` if it can stand between two dots of a name, else raise `InvalidName`."""
    if not _TOKEN.fullmatch(token) or len(token) > 64:
        raise InvalidName(
            f"{what} {token!r} is not usable: write at most 64 lower-case letters, digits, '_' and '-'"
        )
    return token


def check_stored(what: str, *texts: str) -> None:
    """Raise `InvalidInput` for NUL, which PostgreSQL cannot hold, and for lone surrogates."""
    for text in texts:
        if _UNSTORABLE.search(text):
            raise InvalidInput(f"{what} {text[:200]!r} holds NUL or half a character; remove it")


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a channel pattern as a regular expression: `*` is one token, `>` at the end is a tail."""
    if len(pattern) > LONGEST:
        raise InvalidName(
            f"pattern {pattern[:40]!r}… has {len(pattern)} characters; no name has more than {LONGEST}"
        )
    tokens = pattern.split(".")
    parts = []
    for place, token in enumerate(tokens):
        if token == "*":
            parts.append(r"[^.]+")
        elif token == ">" and place == len(tokens) - 1:
            parts.append(r".+")
        elif _TOKEN.fullmatch(token):
            parts.append(re.escape(token))
        else:
            raise InvalidName(
                f"pattern {pattern!r} is not usable at {token!r}: tokens are names, '*' for one token, "
                "or '>' for the tail, separated by single dots"
            )
    return re.compile(r"\.".join(parts))


def matches(pattern: str, channel: str) -> bool:
    """Return whether `channel` is selected by `pattern` (a plain name selects itself)."""
    return compile_pattern(pattern).fullmatch(channel) is not None


def selects(pattern: str, channel: str) -> bool:
    """Return whether a driver with this pattern reads `channel`: `matches`, without the system's own events.

    What a driver announces must not become work again, its own or that of a driver in another namespace.
    A pattern that names them, such as `gbe.events.system.*`, selects them all the same.
    """
    return matches(pattern, channel) and (_SYSTEM not in channel or _SYSTEM in pattern)


def is_ours(channel: str) -> bool:
    """Return whether Holdfast writes a channel itself: its system events, and the copies of dead letters."""
    return any(mark in channel for mark in _OURS)


def is_audit(channel: str) -> bool:
    """Return whether a channel is the audit of some namespace."""
    return channel.endswith(_AUDIT)


def covers(pattern: str, channel: str) -> bool:
    """Return whether a right for a pattern holds on `channel`: `matches`, and a channel that Holdfast writes
    itself must be named, as in `gbe.events.system.*` or `gbe._deadletter.*`."""
    return matches(pattern, channel) and all(mark in pattern for mark in _OURS if mark in channel)


def most_specific(patterns: Iterable[str], channel: str) -> str | None:
    """Return the most specific pattern that selects a channel: token by token from the left, a name is more
    specific than `*`, and `*` than `>`. None where no pattern selects it."""
    return max((each for each in patterns if matches(each, channel)), key=_specificity, default=None)


def _specificity(pattern: str) -> list[int]:
    return [{"*": 1, ">": 0}.get(token, 2) for token in pattern.split(".")]

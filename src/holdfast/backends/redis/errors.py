"""Errors: what redis-py, the server and our scripts say, in the one error tree."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    ExecAbortError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from holdfast.model.errors import (
    HoldfastError,
    InvalidInput,
    InvalidPolicy,
    LockLost,
    NotFound,
    Outdated,
    Overloaded,
    Unavailable,
)

# Answers of a server that cannot take the call now: it is busy, has no disk, or is a replica by now.
_DEMOTED = "READONLY"
_LATER = (_DEMOTED, "BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE", "Script killed")
_LATER_TYPES = (ReadOnlyError, ClusterDownError, ExecAbortError)
_FORBIDDEN = ("The user executing the script can't", "ACL failure in script")
# Before 7.0 what a command in a script answered stands behind the place in the script.
_PLACE = re.compile(r"Error running script \(call to \w+\): @user_script:\d+: (?:@?user_script: ?\d+: )?-?")
_KINDS: dict[str, type[HoldfastError]] = {
    "INPUT": InvalidInput,
    "POLICY": InvalidPolicy,
    "NOTFOUND": NotFound,
    "OUTDATED": Outdated,
    "SCHEMA": HoldfastError,
}
# Newer servers append where the script stood.
_OURS = re.compile(r"HF(INPUT|POLICY|NOTFOUND|OUTDATED|SCHEMA|LOCK) ?(.*?)(?:,? script: .*)?$", re.DOTALL)


class Forbidden(Unavailable):
    """The user of the URL may not do this."""


def is_demoted(error: Exception) -> bool:
    """Whether the server is a replica by now: another one takes the writes."""
    return isinstance(error, ReadOnlyError) or _said(error).startswith(_DEMOTED)


def translate(error: Exception, url: str, *, publishing: bool) -> Exception:
    """The error as our callers know it; one that we cannot place is returned as it is."""
    text = _said(error)
    if isinstance(error, UnicodeError):
        return InvalidInput(f"{getattr(error, 'object', text)!r} is no text that a store can hold")
    if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:
        kind = Overloaded if publishing else Unavailable
        return kind(f"Redis at {redacted(url)} has reached its maxmemory; raise it, or trim: {text}")
    if isinstance(error, NoPermissionError) or text.startswith(_FORBIDDEN):
        return Forbidden(f"Redis at {redacted(url)} does not let this user do that: {text}")
    if not isinstance(error, ResponseError) or isinstance(error, _LATER_TYPES) or text.startswith(_LATER):
        return Unavailable(f"Redis at {redacted(url)} did not answer: {text or type(error).__name__}")
    if isinstance(error, AskError | ClusterCrossSlotError) or "in a cluster node" in text:
        return InvalidInput(
            f"Redis at {redacted(url)} is part of a cluster, whose slots our scripts span; "
            "use a server or a primary with replicas, several as partitions"
        )
    if "DB index" in text:
        return InvalidInput(f"Redis at {redacted(url)} has no such database: {text}")
    if "WRONGTYPE" in text:
        return InvalidInput(f"a key that it needs holds something of another kind: {text}")
    ours = _OURS.search(text)
    if ours is None:
        return error
    kind_name, message = ours.groups()
    if kind_name == "LOCK":
        name, _, token = message.rpartition(" ")
        return LockLost(name, int(token))
    if kind_name == "SCHEMA":
        message = f"the store has schema {message}, which is newer than this version; upgrade holdfast"
    return _KINDS[kind_name](message)


def _said(error: Exception) -> str:
    return _PLACE.sub("", str(error).strip(), count=1)


def redacted(url: str) -> str:
    """The URL without its password, for messages and logs."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
    except ValueError:
        return "the given URL"

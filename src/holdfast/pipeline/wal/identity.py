"""Identity: what makes two records the same one, wherever and whenever they are read again."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable

_NAMESPACE = uuid.UUID("6e0d0a1e-6d1c-5a53-9c4f-2f0d1b6c8a77")


def transaction_id(channel: str, source: str, event_id: str) -> str:
    """The idempotency key of an event as 32 hexadecimal digits, the same on every read of it.

    Each part is length-prefixed, so that no two keys can run together into the same text.
    """
    return _digest(_prefix(channel, source), event_id).hex()


def transaction_ids(
    channels: Iterable[str], sources: Iterable[str], ids: Iterable[str]
) -> tuple[list[str], list[int]]:
    """The transaction ids of many events, and the 64 bits of each that joins compare."""
    prefixes: dict[tuple[str, str], hashlib._Hash] = {}
    texts, hashes = [], []
    for channel, source, event_id in zip(channels, sources, ids, strict=True):
        prefix = prefixes.get((channel, source))
        if prefix is None:
            prefix = prefixes[channel, source] = _prefix(channel, source)
        digest = _digest(prefix, event_id)
        texts.append(digest.hex())
        hashes.append(int.from_bytes(digest[:8], "big", signed=True))
    return texts, hashes


def failed_id(batch: str, name: str) -> str:
    """The id of a failed record, by its name in its batch: one, however often it is written down."""
    return str(uuid.uuid5(_NAMESPACE, f"{batch}/{name}"))


def _prefix(channel: str, source: str) -> hashlib._Hash:
    hasher = hashlib.sha256()
    for part in (channel.encode(), source.encode()):
        hasher.update(b"%d:%b" % (len(part), part))
    return hasher


def _digest(prefix: hashlib._Hash, event_id: str) -> bytes:
    hasher, part = prefix.copy(), event_id.encode()
    hasher.update(b"%d:%b" % (len(part), part))
    return hasher.digest()[:16]

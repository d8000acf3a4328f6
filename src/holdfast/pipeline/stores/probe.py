"""The probe: does a store really honour conditional puts? Some clones of S3 answer 200 and overwrite."""

from __future__ import annotations

import secrets

from holdfast.contracts import Finding
from holdfast.model.errors import ObjectConflict
from holdfast.pipeline.stores.contract import ObjectStore

_FOLDER = "_probe"


def probe(store: ObjectStore) -> list[Finding]:
    """Two small objects are written, looked at and removed. A warning says what a missing condition costs."""
    name = f"{_FOLDER}/{secrets.token_hex(8)}"
    try:
        return [_if_absent(store, f"{name}-a"), _if_match(store, f"{name}-b")]
    finally:
        for letter in "ab":
            store.delete(f"{name}-{letter}")


def _if_absent(store: ObjectStore, name: str) -> Finding:
    store.put(name, b"first")
    try:
        store.put(name, b"second")
    except ObjectConflict:
        return Finding("ok", store.url, "put-if-absent (If-None-Match) is honoured: nothing is written over")
    return Finding(
        "warning",
        store.url,
        "put-if-absent (If-None-Match) is ignored: an object can be written over. Run one writer only; "
        "two of them are told apart by their lock alone",
    )


def _if_match(store: ObjectStore, name: str) -> Finding:
    store.put(name, b"first")
    tag = store.tagged(name).tag
    if store.swap(name, tag, b"second") and not store.swap(name, tag, b"third"):
        return Finding("ok", store.url, "compare-and-swap (If-Match) is honoured")
    return Finding(
        "warning",
        store.url,
        "compare-and-swap (If-Match) is ignored or refused: leases kept in this store are not safe",
    )

"""The ledger of a Delta warehouse: entries that are prepared as objects, and counted by a table's commit.

    _holdfast/ledger/{number}.json

holds the entries of all keys of one commit. It means nothing until a commit of the table names its number
under these keys. So one that a writer left behind when it died, or when another was faster, does no harm.
A key is forgotten after a while, by the table's log, too, so that neither grows without end: the WAL does not
ask for it any more by then, and rows are told by their own ids anyway.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import orjson
from deltalake import DeltaTable

from holdfast.model.errors import ObjectConflict
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.warehouse.contract import Outcome

FOLDER = "_holdfast/ledger"
KEPT = timedelta(days=31)
"""A day more than the log of a table keeps them."""
_DRAWN = 20
"""Bits of a number that are drawn; those before them are the time, in milliseconds."""


class Ledger:
    """What became of each key."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def find(self, delta: DeltaTable, key: str) -> Outcome | None:
        """What this version of the table says of a key."""
        number = delta.transaction_version(key)
        if number is None:
            return None
        found = orjson.loads(self._store.get(_name(number)))[key]
        return Outcome(found["inserted"], found["duplicates"], tuple(found["conflicts"]), found["refused"])

    def prepare(self, outcomes: Mapping[str, Outcome]) -> int:
        """Write down what is to become of keys; returns the number for the commit."""
        entries = {key: outcome._asdict() for key, outcome in outcomes.items()}
        body = orjson.dumps(entries, option=orjson.OPT_SORT_KEYS)
        while True:
            number = (_milliseconds(datetime.now(UTC)) << _DRAWN) | secrets.randbits(_DRAWN)
            try:
                self._store.put(_name(number), body)
                return number
            except ObjectConflict:  # a number that was drawn before
                continue

    def clean(self, now: datetime) -> int:
        """Remove what is forgotten, the oldest first; returns how many."""
        oldest, removed = _name(_milliseconds(now - KEPT) << _DRAWN), 0
        for entry in self._store.list(FOLDER):
            if entry.name >= oldest:
                break
            self._store.delete(entry.name)
            removed += 1
        return removed


def _milliseconds(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def _name(number: int) -> str:
    return f"{FOLDER}/{number:019}.json"

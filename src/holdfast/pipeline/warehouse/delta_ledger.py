"""The ledger of a Delta warehouse: entries that are prepared as objects, and counted by a table's commit.

    _holdfast/{hash of the key}/{number}.json

An entry means nothing until a commit of the table names its number under the key. So an entry that a writer
left behind when it died, or when another was faster, does no harm.
"""

from __future__ import annotations

import hashlib

import orjson
from deltalake import DeltaTable

from holdfast.model.errors import ObjectConflict
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.warehouse.contract import Outcome

FOLDER = "_holdfast"


class Ledger:
    """What became of each key."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def find(self, delta: DeltaTable, key: str) -> Outcome | None:
        """What this version of the table says of a key."""
        number = delta.transaction_version(key)
        if number is None:
            return None
        found = orjson.loads(self._store.get(_name(key, number)))
        return Outcome(found["inserted"], found["duplicates"], tuple(found["conflicts"]), found["refused"])

    def prepare(self, key: str, outcome: Outcome) -> int:
        """Write down what is to become of a key; answers the number for the commit."""
        body = orjson.dumps({"key": key} | outcome._asdict(), option=orjson.OPT_SORT_KEYS)
        number = sum(1 for _ in self._store.list(_folder(key)))
        while True:
            number += 1
            try:
                self._store.put(_name(key, number), body)
                return number
            except ObjectConflict:  # another writer prepares the same key
                continue


def _folder(key: str) -> str:
    return f"{FOLDER}/{hashlib.sha256(key.encode()).hexdigest()}"


def _name(key: str, number: int) -> str:
    return f"{_folder(key)}/{number:06}.json"

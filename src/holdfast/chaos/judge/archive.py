"""The auditor: judges an archive by its objects and manifests alone, with tools that know nothing of ours."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.model.errors import NotFound
from holdfast.pipeline.stores import ObjectStore

Identity = tuple[str, str, int, str]
"""channel, position, store, id"""


@dataclass
class Audit:
    """What is in an archive, and what is wrong with it."""

    events: Counter[Identity] = field(default_factory=Counter)
    lines: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def ids(self) -> set[str]:
        return {identity[3] for identity in self.events}

    def missing(self, ids: Iterable[str]) -> set[str]:
        return set(ids) - self.ids


def audit(store: ObjectStore) -> Audit:
    """I8: the rows of all manifests are the distinct archived events, and every checksum holds."""
    found, listed, rows = Audit(), set(), 0
    reached: dict[str, str] = {}
    for entry in store.list("manifests"):
        manifest, chain = json.loads(store.get(entry.name)), entry.name.rpartition("/")[0]
        if manifest["last"] <= reached.get(chain, ""):  # by compaction: the one before it has all of it
            continue
        reached[chain] = manifest["last"]
        rows += manifest["rows"]
        for each in manifest["objects"]:
            listed.add(each["object"])
            try:
                data = store.get(each["object"])
            except NotFound:
                found.wrong.append(f"{each['object']} is in a manifest, and is not there")
                continue
            if hashlib.sha256(data).hexdigest() != each["sha256"] or len(data) != each["bytes"]:
                found.wrong.append(f"{each['object']} is not what its manifest says")
                continue
            lines = [json.loads(line) for line in gzip.decompress(data).splitlines()]
            if len(lines) != each["rows"] or [lines[0]["position"], lines[-1]["position"]] != [
                each["first"],
                each["last"],
            ]:
                found.wrong.append(f"{each['object']} holds other rows than its manifest says")
            found.lines += lines
            partition = manifest["partition"]
            found.events.update(
                (row["channel"], row["position"], partition, row["message_id"]) for row in lines
            )
    found.orphans = sorted({entry.name for entry in store.list("archive")} - listed)
    if rows != len(found.events):
        found.wrong.append(f"manifests count {rows} rows, and there are {len(found.events)} distinct events")
    return found

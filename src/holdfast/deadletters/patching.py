"""Patching: JSON Patch on an event's data, and what it would change."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jsonpatch

from holdfast.model.errors import InvalidInput
from holdfast.model.event import MAX_DATA, encode_data

MOST_STEPS = 100
_MOST_LINES, _AROUND = 4_000, 3
_LONGEST = 256 << 10
_PLACE = re.compile(r"([-+])([0-9]+)")
# What the library raises for patches that are wrong, or wrong for a document: it trusts its input.
_WRONG = (
    jsonpatch.JsonPatchException,
    jsonpatch.JsonPointerException,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Change:
    """What a patch makes of one item's data."""

    item: str
    old: bytes
    new: bytes
    diff: str
    """Both as indented JSON, line by line; of a long one only the beginning."""

    @property
    def before(self) -> Any:
        """The data as it is."""
        return json.loads(self.old)

    @property
    def after(self) -> Any:
        """The data as it would be."""
        return json.loads(self.new)

    @property
    def digest(self) -> str:
        """Of the data that it was made from: give it along, and only that data is changed."""
        return digest(self.old)


def check_patch(patch: Sequence[dict[str, Any]]) -> None:
    """Refuse what is no JSON Patch, before anything is looked at."""
    if len(patch) > MOST_STEPS:
        raise InvalidInput(f"the patch has {len(patch)} steps; use at most {MOST_STEPS}")
    encode_data(patch)  # it is kept with the operation
    try:
        jsonpatch.JsonPatch(list(patch))
        for step in patch:  # which the library looks at only when it comes to them
            if step["op"] in ("add", "replace", "test"):
                step["value"]
            elif step["op"] in ("move", "copy"):
                jsonpatch.JsonPointer(step["from"])
    except _WRONG as error:
        raise InvalidInput(f"that is no JSON Patch (RFC 6902): {_words(error)}") from None


def digest(data: bytes) -> str:
    """What names some data."""
    return hashlib.sha256(data).hexdigest()


def change(item: str, data: bytes, patch: Sequence[dict[str, Any]]) -> Change:
    """What the patch would change, or `InvalidInput` where it does not fit."""
    before, patched = _json(item, data), apply(item, data, patch)
    after = json.loads(patched)
    try:
        old, new = (json.dumps(each, indent=2, ensure_ascii=False).splitlines() for each in (before, after))
    except RecursionError:
        raise InvalidInput(f"{item} nests too deep to be shown, and cannot be patched") from None
    diff = "\n".join(_diff(old, new))
    cut = diff[:_LONGEST].rpartition("\n")[0] + "\n… the rest is not shown"
    return Change(item, data, patched, diff if len(diff) <= _LONGEST else cut)


def _diff(old: list[str], new: list[str]) -> Iterator[str]:
    """What differs, with the lines around it. Only the stretch between what both begin and end with is
    compared line by line, and a long one not even so: that would take minutes."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    if len(old) + len(new) - 2 * (head + tail) > _MOST_LINES:
        yield from ("--- as it is", "+++ patched", f"@@ -{head + 1} +{head + 1} @@")
        yield from (f"-{line}" for line in old[head : len(old) - tail])
        yield from (f"+{line}" for line in new[head : len(new) - tail])
        return
    start, rest = max(0, head - _AROUND), max(0, tail - _AROUND)
    stretches = old[start : len(old) - rest], new[start : len(new) - rest]
    for line in difflib.unified_diff(*stretches, "as it is", "patched", lineterm="", n=_AROUND):
        yield (
            _PLACE.sub(lambda found: f"{found[1]}{int(found[2]) + start}", line) if "@@" in line[:2] else line
        )


def _common(one: list[str], other: list[str]) -> int:
    """With how many lines both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (line, same) in pairs if line != same), min(len(one), len(other)))


def apply(item: str, data: bytes, patch: Sequence[dict[str, Any]]) -> bytes:
    """The patched data, or `InvalidInput` where the patch does not fit."""
    document, patched = _json(item, data), data
    for step in patch:
        try:
            document = jsonpatch.apply_patch(document, [step])
        except _WRONG as error:
            raise InvalidInput(f"the patch does not fit {item}: {_words(error)}") from None
        patched = encode_data(document)
        # After each step: a few that copy the whole into itself would fill any memory.
        if len(patched) > MAX_DATA:
            raise InvalidInput(f"the patch makes {len(patched)} bytes of {item}; the limit is {MAX_DATA}")
    return patched


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _json(item: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{item} carries no JSON, and cannot be patched") from None

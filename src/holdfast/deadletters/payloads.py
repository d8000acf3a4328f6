"""Payloads: an event's data as JSON, read exactly, shown, and changed by a JSON Patch.

A patch of large data runs in a process of its own, with a limit on its time and on its memory: a hundred
steps on a megabyte can take minutes, and nobody else would be served meanwhile. What is small is patched at
once: a process would take longer to begin.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import hashlib
import json
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import jsonpatch
import orjson

from holdfast.model.errors import InvalidInput
from holdfast.model.event import MAX_DATA, encode_data

DIGITS = 19
LONG = re.compile(rb"[0-9]{%d}" % DIGITS)
"""What may be an integer above 64 bits."""
_HUGE = re.compile(rb"[0-9]{4301}")  # Python, for one, takes no longer ones
_DEEPEST = 200  # what every writer of JSON takes
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
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
SECONDS, MEMORY = 5, 512 << 20
_SMALL = 128 << 10
"""Bytes of data times steps, which take some ten milliseconds."""
_WAIT = 60.0
"""For a process whose machine has no time for it."""

Patch = Sequence[dict[str, Any]]


def readable(name: str, data: bytes) -> dict[str, Any]:
    """Data under a name: as JSON where it is JSON that survives being written again, else in Base64 under the
    name with `_base64`."""
    with suppress(ValueError):
        value = exact_json(data)
        if not nests_deep(data):
            return {name: value}
    return {f"{name}_base64": base64.b64encode(data).decode()}


def exact_json(data: bytes) -> Any:
    """The value of a text of JSON, with integers of any size as they are; `ValueError` where it is none."""
    value = orjson.loads(data)
    return exact_integers(data) if LONG.search(data) else value


def exact_integers(data: bytes) -> Any:
    """The value of a text that orjson has taken: it makes a float of an integer above 64 bits."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def is_json(data: bytes) -> bool:
    """Whether it is a text of JSON that other parsers take too."""
    try:
        orjson.loads(data)
        if _HUGE.search(data):
            exact_integers(data)
    except ValueError:
        return False
    return True


def nests_deep(data: bytes) -> bool:
    """Whether a text of JSON nests deeper than every writer takes."""
    if data.count(b"[") + data.count(b"{") <= _DEEPEST:
        return False
    brackets = _TEXT.sub(b"", data).translate(_ALIKE, _NO_BRACKETS)
    for _ in range(_DEEPEST):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # the innermost ones
    return bool(brackets)


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


def check_patch(patch: Patch) -> None:
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


def change(item: str, data: bytes, patch: Patch) -> Change:
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
    """What differs, with the lines around it. Only what lies between what both begin and end with is
    compared line by line, and a long one not even so: that would take minutes."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    if len(old) + len(new) - 2 * (head + tail) > _MOST_LINES:
        yield from ("--- as it is", "+++ patched", f"@@ -{head + 1} +{head + 1} @@")
        yield from (f"-{line}" for line in old[head : len(old) - tail])
        yield from (f"+{line}" for line in new[head : len(new) - tail])
        return
    start, rest = max(0, head - _AROUND), max(0, tail - _AROUND)
    changed = old[start : len(old) - rest], new[start : len(new) - rest]
    for line in difflib.unified_diff(*changed, "as it is", "patched", lineterm="", n=_AROUND):
        yield (
            _PLACE.sub(lambda found: f"{found[1]}{int(found[2]) + start}", line) if "@@" in line[:2] else line
        )


def _common(one: list[str], other: list[str]) -> int:
    """With how many lines both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (line, same) in pairs if line != same), min(len(one), len(other)))


def apply(item: str, data: bytes, patch: Patch) -> bytes:
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


async def apply_isolated(item: str, data: bytes, patch: Patch) -> bytes:
    """As `apply`; raises `InvalidInput` also where it takes too long or too much memory."""
    if _is_small(data, patch):
        return apply(item, data, patch)
    return await _run("apply", item, data, patch)


async def change_isolated(item: str, data: bytes, patch: Patch) -> Change:
    """As `change`, in the same way."""
    if _is_small(data, patch):
        return change(item, data, patch)
    reply = await _run("change", item, data, patch)
    size, _, rest = reply.partition(b"\n")
    diff, new = rest[: int(size)].decode(), rest[int(size) :]
    return Change(item, data, new, diff)


def _is_small(data: bytes, patch: Patch) -> bool:
    return len(data) * (len(patch) + 2) <= _SMALL


async def _run(what: Literal["apply", "change"], item: str, data: bytes, patch: Patch) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    asked = (
        json.dumps({"what": what, "item": item, "patch": list(patch), "seconds": SECONDS}).encode() + b"\n"
    )
    try:
        async with asyncio.timeout(_WAIT):
            reply, _ = await process.communicate(asked + data)
    except TimeoutError:
        reply = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if reply[:1] == b"=":
        return reply[1:]
    raise InvalidInput(
        reply[1:].decode()
        or f"the patch of {item} takes over {SECONDS} s or {MEMORY >> 20} MiB; use fewer steps on less data"
    )


def main() -> None:
    """Read a task from the standard input. The first byte of the output tells whether it could be done."""
    asked = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    item, patch, data = asked["item"], asked["patch"], sys.stdin.buffer.read()
    try:
        if asked["what"] == "apply":
            reply = b"=" + apply(item, data, patch)
        else:
            made = change(item, data, patch)
            diff = made.diff.encode()
            reply = b"=%d\n" % len(diff) + diff + made.new
    except InvalidInput as error:
        reply = b"!" + str(error).encode()
    sys.stdout.buffer.write(reply)


if __name__ == "__main__":
    main()

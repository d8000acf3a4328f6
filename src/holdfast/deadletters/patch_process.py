"""Patches of large data, in a process of their own: with a limit on its time and on its memory.

A hundred steps on a megabyte can take minutes, and nobody else would be served meanwhile. What is small is
patched at once: a process would take longer to begin.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Sequence
from typing import Any, Literal

from holdfast.deadletters.patching import Change, apply, change
from holdfast.model.errors import InvalidInput

SECONDS, MEMORY = 5, 512 << 20
_SMALL = 128 << 10
"""Bytes of data times steps, which take some ten milliseconds."""
_WAIT = 60.0
"""For a process whose machine has no time for it."""

Steps = Sequence[dict[str, Any]]


async def apply_apart(item: str, data: bytes, patch: Steps) -> bytes:
    """As `patching.apply`; `InvalidInput` also where it takes too long or too much memory."""
    if _is_small(data, patch):
        return apply(item, data, patch)
    return await _ask("apply", item, data, patch)


async def change_apart(item: str, data: bytes, patch: Steps) -> Change:
    """As `patching.change`, in the same way."""
    if _is_small(data, patch):
        return change(item, data, patch)
    told = await _ask("change", item, data, patch)
    size, _, rest = told.partition(b"\n")
    diff, new = rest[: int(size)].decode(), rest[int(size) :]
    return Change(item, data, new, diff)


def _is_small(data: bytes, patch: Steps) -> bool:
    return len(data) * (len(patch) + 2) <= _SMALL


async def _ask(what: Literal["apply", "change"], item: str, data: bytes, patch: Steps) -> bytes:
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
            told, _ = await process.communicate(asked + data)
    except TimeoutError:
        told = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if told[:1] == b"=":
        return told[1:]
    raise InvalidInput(
        told[1:].decode()
        or f"the patch of {item} takes over {SECONDS} s or {MEMORY >> 20} MiB; use fewer steps on less data"
    )


def main() -> None:
    """Do what the standard input asks for; the first byte of the output tells whether it could be done."""
    asked = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    item, patch, data = asked["item"], asked["patch"], sys.stdin.buffer.read()
    try:
        if asked["what"] == "apply":
            told = b"=" + apply(item, data, patch)
        else:
            made = change(item, data, patch)
            diff = made.diff.encode()
            told = b"=%d\n" % len(diff) + diff + made.new
    except InvalidInput as error:
        told = b"!" + str(error).encode()
    sys.stdout.buffer.write(told)


if __name__ == "__main__":
    main()

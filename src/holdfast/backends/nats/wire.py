"""The wire: nats-py's connection, with a short way for the answers to our own questions.

nats-py makes an object, a dictionary and a turn of a queue of every message, some 30 µs each. Here the
messages of an answer go straight from the socket's bytes to whoever asked, in order; everything else takes
nats-py's way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nats.aio.client import Client
from nats.protocol.parser import Parser

Take = Callable[[bytes, bytes], None]
VERSION = "NATS/1.0"
_HEADED, _PLAIN = b"HMSG ", b"MSG "


class Wire(Client):
    """A connection that gives what is sent to some subjects to their takers: raw headers, and data."""

    def __init__(self, takers: Mapping[bytes, Take]) -> None:
        super().__init__()
        self.takers = takers
        self._ps = _Skimmer(self)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        take = self.takers.get(subject)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            take(headers or b"", data)


class _Skimmer(Parser):
    """Parts the socket's bytes into whole frames. Those for a taker are taken, the others go to nats-py."""

    def reset(self) -> None:
        super().reset()
        self._held: list[bytes] = []
        self._size = self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        self._held.append(data)
        self._size += len(data)
        if self._size >= self._needed:  # what is cut off is not looked at again before it is whole
            whole = b"".join(self._held)
            rest = whole[await self._frames(whole) :]
            self._held, self._size = [rest], len(rest)

    async def _frames(self, whole: bytes) -> int:
        """Work on every whole frame; answers where the last one ends."""
        at, takers = 0, self.nc.takers
        self._needed = 0
        while (line := whole.find(b"\r\n", at)) >= 0:
            end = line + 2
            if whole.startswith((_HEADED, _PLAIN), at):
                fields = whole[at:line].split()
                end += int(fields[-1]) + 2
                if end > len(whole):
                    self._needed = end - at
                    break
                if len(fields) == 5 and fields[0] == b"HMSG" and fields[1] in takers:
                    body = line + 2 + int(fields[3])
                    takers[fields[1]](whole[line + 2 : body], whole[body : end - 2])
                    at = end
                    continue
            await super().parse(whole[at:end])
            at = end
        return at


def parse_headers(raw: bytes) -> dict[str, str]:
    """Headers as a server or a client wrote them; the status that an answer ends with is `Status`."""
    first, _, rest = raw[:-4].decode(errors="replace").partition("\r\n")
    try:
        headers = dict([line.split(": ", 1) for line in rest.split("\r\n")]) if rest else {}
    except ValueError:
        headers = _loose(rest)
    if first != VERSION:
        headers["Status"] = first.removeprefix(VERSION).strip().partition(" ")[0]
    return headers


def _loose(text: str) -> dict[str, str]:
    """Headers of a client that does not put one space behind the colon."""
    pairs = [line.partition(":") for line in text.split("\r\n")]
    return {name: value.strip() for name, colon, value in pairs if colon and name}

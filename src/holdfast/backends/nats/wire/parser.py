"""From the socket's bytes to messages: a short way through nats-py for the replies to our own requests.

nats-py makes an object, a dictionary and a turn of a queue of every message, some 30 µs each, which is most
of what a read of thousands of messages takes. Here the messages of a reply go straight from the socket's
bytes to whoever asked, in order; everything else takes nats-py's way.

nats-py's public interface has no place for this: its messages come from a subscription's queue only, and
neither its parser nor its transport can be given to it. So this module, and no other, uses private names:

    Client._ps             the parser, which gets every read of the socket: replaced by ours
    Client._process_msg    called by the parser for every message: ours takes replies without headers
    Client._server_info    what the server told of itself: its id stands nowhere else
    Client._pings_outstanding    the pings without a reply: none while anything comes in, since the reply to a
                           ping waits behind what was asked for before it
    Parser.nc, .reset, .parse    public names of an undocumented class: ours parses frames, and calls theirs

`ReplyClient` checks all of them when it is made, and raises `HoldfastError` where a release of nats-py has
changed one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.protocol.parser import Parser

from holdfast.backends.nats.wire import subjects
from holdfast.model.errors import HoldfastError

VERSION = "NATS/1.0"
Receiver = Callable[[bytes, bytes], None]
"""Takes the headers of a message, unread, and its data."""
Raw = tuple[bytes, bytes]
"""A message as it came: its headers unread, and its data."""
_WITH_HEADERS, _WITHOUT = b"HMSG ", b"MSG "
_ARGUMENTS = ["self", "sid", "subject", "reply", "data", "headers"]
_PUBLISH = re.compile(subjects.PUBLISH_NAME)
_SUBJECT_AND_SEQUENCE = re.compile(
    f".*\r\n{subjects.SUBJECT}: ([^\r]*)\r\n{subjects.SEQUENCE}: (\\d+)\r\n".encode(), re.DOTALL
)


class ReplyClient(Client):
    """A connection that gives what is sent to some subjects to their receivers."""

    def __init__(self, receivers: Mapping[bytes, Receiver]) -> None:
        super().__init__()
        _check_library(self)
        self.receivers = receivers
        self._ps = _ReplyParser(self)

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server told of itself when it was connected to."""
        return self._server_info

    @property
    def server_name(self) -> str:
        """What the server is called, in its cluster by nobody else."""
        return str(self._server_info.get("server_name"))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        receive = self.receivers.get(subject)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            receive(headers or b"", data)


class _ReplyParser(Parser):
    """Splits the socket's bytes into whole frames. Those for a receiver go to it, the others to nats-py."""

    def reset(self) -> None:
        super().reset()
        self._held: list[bytes] = []
        self._size = self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        self.nc._pings_outstanding = 0
        self._held.append(data)
        self._size += len(data)
        if self._size >= self._needed:  # what is cut off is not looked at again before it is whole
            whole = b"".join(self._held)
            rest = whole[await self._frames(whole) :]
            self._held, self._size = [rest], len(rest)

    async def _frames(self, whole: bytes) -> int:
        """Work on every whole frame; returns where the last one ends."""
        at, receivers = 0, self.nc.receivers
        self._needed = 0
        while (line := whole.find(b"\r\n", at)) >= 0:
            end = line + 2
            if whole.startswith((_WITH_HEADERS, _WITHOUT), at):
                fields = whole[at:line].split()
                end += int(fields[-1]) + 2
                if end > len(whole):
                    self._needed = end - at
                    break
                if len(fields) == 5 and fields[0] == b"HMSG" and fields[1] in receivers:
                    body = line + 2 + int(fields[3])
                    receivers[fields[1]](whole[line + 2 : body], whole[body : end - 2])
                    at = end
                    continue
            await super().parse(whole[at:end])
            at = end
        return at


def _check_library(client: Client) -> None:
    parser = getattr(client, "_ps", None)
    process = getattr(Client, "_process_msg", None)
    as_expected = {
        "Client._ps": type(parser) is Parser,
        "Client._process_msg": inspect.iscoroutinefunction(process)
        and list(inspect.signature(process).parameters) == _ARGUMENTS,
        "Client._server_info": isinstance(getattr(client, "_server_info", None), dict),
        "Client._pings_outstanding": isinstance(getattr(client, "_pings_outstanding", None), int),
        "Parser.nc": getattr(parser, "nc", None) is client,
        "Parser.parse": inspect.iscoroutinefunction(getattr(Parser, "parse", None)),
        "Parser.reset": callable(getattr(Parser, "reset", None)),
    }
    changed = [name for name, holds in as_expected.items() if not holds]
    if changed:
        raise HoldfastError(
            f"nats-py {version('nats-py')} has changed {', '.join(changed)}, which Holdfast builds on; "
            "install an older nats-py, or a newer holdfast"
        )


class StoredMessage(NamedTuple):
    """A message as the stream holds it."""

    subject: str
    seq: int
    stamp: str
    headers: Mapping[str, str]
    data: bytes


def stored(message: Raw) -> StoredMessage:
    """Return a message with its headers read."""
    headers, data = parse_headers(message[0]), message[1]
    if not _PUBLISH.fullmatch(headers.get(subjects.PUBLISH, "")) or subjects.BATCH not in headers:
        headers.pop(subjects.PUBLISH, None)  # it only says so: nobody would ever end that publish
    return StoredMessage(
        headers[subjects.SUBJECT], int(headers[subjects.SEQUENCE]), headers[subjects.STAMP], headers, data
    )


def subject_and_sequence(headers: bytes) -> tuple[str, int]:
    """Return these two alone, which the server writes behind whatever else is there."""
    match = _SUBJECT_AND_SEQUENCE.match(headers)
    if match is None:
        raise HoldfastError(f"NATS did not say where a message stands: {headers!r}")
    return match[1].decode(), int(match[2])


def parse_headers(raw: bytes) -> dict[str, str]:
    """Return headers as a server or a client wrote them; the status that a reply ends with is `Status`."""
    first, _, rest = raw[:-4].decode(errors="replace").partition("\r\n")
    try:
        headers = dict([line.split(": ", 1) for line in rest.split("\r\n")]) if rest else {}
    except ValueError:  # of a client that does not put one space behind the colon
        pairs = [line.partition(":") for line in rest.split("\r\n")]
        headers = {name: value.strip() for name, colon, value in pairs if colon and name}
    if first != VERSION:
        headers["Status"] = first.removeprefix(VERSION).strip().partition(" ")[0]
    return headers

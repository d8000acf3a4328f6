"""The ports of a server: chosen once, kept in its folder, and held while its owner lives."""

import os
import secrets
import socket
from pathlib import Path

from holdfast.embedded.files import write_private

# Below the ranges from which Linux and macOS take the ports of outgoing connections. Above, a client that
# retries while its server is down can be given the server's own port, and then it talks to itself.
RANGE = range(10_000, 20_000)
# SeaweedFS opens a second port at this distance from each of its ports, outside of our range.
TWIN = 10_000

# The UDP port of the same number, which no server of ours uses: bound, it holds the port for a server that is
# down, against all other processes that choose one. The kernel releases it when its holder dies.
_held: dict[int, int] = {}
_TRIES = 1_000


class NoFreePortError(RuntimeError):
    """Every port that was tried is taken, or this process may not listen at all."""

    def __init__(self) -> None:
        super().__init__(
            f"no free port found on 127.0.0.1 between {RANGE.start} and {RANGE.stop - 1}: "
            "end what listens there, or allow this process to listen on the loopback interface"
        )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of a former server that linger in TIME_WAIT do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def hold(port: int) -> bool:
    """Let nobody else choose it until `release`. Whether we have it now."""
    if port not in _held:
        with socket.socket(type=socket.SOCK_DGRAM) as holder:
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                return False
            _held[port] = holder.detach()
    return True


def release(port: int) -> None:
    if port in _held:
        os.close(_held.pop(port))


def choose(count: int) -> list[int]:
    """Free ports, which are held from now on. Raises NoFreePortError."""
    chosen: list[int] = []
    for _ in range(_TRIES):
        if len(chosen) == count:
            return chosen
        port = secrets.choice(RANGE)
        if port in _held or not hold(port):
            continue
        if is_free(port) and is_free(port + TWIN):
            chosen.append(port)
        else:
            release(port)
    for port in chosen:
        release(port)
    raise NoFreePortError


def read(folder: Path) -> list[int]:
    """The ports that the server in `folder` has, or none yet."""
    try:
        return [int(port) for port in (folder / "ports").read_text().split()]
    except FileNotFoundError:
        return []


def keep(folder: Path, count: int) -> list[int]:
    """The folder's former ports while they are free, otherwise new ones, which it remembers."""
    former = read(folder)
    if len(former) == count and all(map(is_free, former)):
        for port in former:
            hold(port)  # another user of the same folder may have it already
        return former
    chosen = choose(count)
    write_private(folder / "ports", " ".join(map(str, chosen)) + "\n")
    return chosen

"""The ports of a server: chosen once, and kept in its folder."""

import secrets
import socket
from pathlib import Path

from holdfast.embedded import private

# Below the ranges from which Linux and macOS take the ports of outgoing connections. Above, a client that
# retries while its server is down can be given the server's own port, and then it talks to itself.
RANGE = range(10_000, 22_000)
# SeaweedFS opens a second port at this distance from each of its ports.
TWIN = 10_000


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of a former server that linger in TIME_WAIT do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose(count: int) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < count:
        port = secrets.choice(RANGE)
        if port not in chosen and is_free(port) and is_free(port + TWIN):
            chosen.append(port)
    return chosen


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
        return former
    chosen = choose(count)
    private.write(folder / "ports", " ".join(map(str, chosen)) + "\n")
    return chosen

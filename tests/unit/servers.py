"""What the tests of embedded servers share: kinds of servers, processes, waiting."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.embedded import (
    S3,
    Nats,
    Postgres,
    Redis,
    Server,
    guard,
)

SERVERS: list[type[Server]] = [Postgres, Redis, Nats, S3]
LIGHT: list[type[Server]] = [Postgres, Redis]


def wait_for(condition: Callable[[], object], patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    return any(alive for number, _, alive in guard.processes() if number == pid)


def pid_of(server: Server) -> int:
    return int((server.folder / "server.lock").read_text())


@contextmanager
def python(code: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A process of its own, which ends with the block at the latest, and not gently."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()

"""A server process: how every embedded server is started, stopped, killed, paused and found again."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from holdfast.embedded import guard, ports
from holdfast.embedded.files import ServerFolder, keep_secret

T = TypeVar("T")


class ServerError(RuntimeError):
    """A server did not start, or was asked for what it can not do now."""


class GuardProcess:
    """The owner's end of a guard. When the owner dies, the kernel closes it."""

    def __init__(self, spec: guard.Spec, log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[spec["lock"]],
                start_new_session=True,
            )
        self._write(json.dumps(spec).encode() + b"\n")
        if spec["users"]:
            self.end()  # the guard of a shared server looks at its users instead

    def end(self, *, keep: bool = False) -> None:
        """Have the server stopped and its traces removed, unless they are to be kept. Waits for it."""
        if keep:
            self._write(b"keep")
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _write(self, text: bytes) -> None:
        with suppress(BrokenPipeError):  # a guard that has died says so in the log
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.write(text)
                self._process.stdin.flush()


class Server(ABC):
    """One server process with a folder of its own: the given one, or a temporary one that `stop` deletes."""

    ports_needed: ClassVar[int] = 1
    stop_signal: ClassVar[int] = signal.SIGTERM
    # For a server whose folder is thrown away: it has nothing left to write down.
    discard_signal: ClassVar[int] = signal.SIGKILL
    start_timeout: ClassVar[float] = 60.0
    grace: ClassVar[float] = 10.0

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, shared: bool = False) -> None:
        self._folder = ServerFolder(folder)
        self._shared = shared
        self._ports: list[int] = []
        self._secret = ""
        self._guard: GuardProcess | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect, with the credentials they need. It stays the same over restarts."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line, run in the folder. Secrets do not belong here: everybody can read it."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether the server answers a client."""

    def environment(self) -> dict[str, str]:
        """What the server's environment has besides ours."""
        return {}

    def prepare(self) -> None:
        """Write what the server reads when it starts."""
        return

    def leftovers(self) -> list[str]:
        """What the server leaves outside of its folder."""
        return []

    @property
    def folder(self) -> Path:
        return self._started(self._folder.path)

    @property
    def port(self) -> int:
        return self._started(self._ports)[0]

    @property
    def secret(self) -> str:
        return self._started(self._secret)

    @property
    def running(self) -> bool:
        return self._folder.occupied

    def start(self) -> Self:
        """Return when the server answers; at once when it already does."""
        try:
            with self._folder.joining() if self._shared else nullcontext():
                self.launch()
                self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop gracefully, after a while by force. A shared server stops when its last user does this."""
        self._end_guard(keep=False)
        for port in self._ports:
            ports.release(port)
        self._folder.leave()
        self._folder.discard()

    def kill(self) -> None:
        """SIGKILL to all of the server's processes. The folder stays, and `start` recovers from it."""
        if self.running:
            guard.kill_tree(self._pid())
            self._wait_ended()

    def restart(self) -> None:
        """Stop gracefully and start again, with the same folder and port."""
        if self.running:
            pid = self._pid()
            guard.send({pid}, self.stop_signal)
            guard.send(guard.tree(pid), signal.SIGCONT)
            if not self._wait_ended():
                self.kill()
        self.start()

    def pause(self) -> None:
        """Freeze all of the server's processes: connections stay open, and nothing answers."""
        guard.freeze(self._pid())

    def resume(self) -> None:
        guard.send(guard.tree(self._pid()), signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self) -> None:
        """Start the process without waiting for it, unless it runs already."""
        if self._guard is not None and not self._shared and self.running:
            return
        self._end_guard(keep=True)
        lock = self._occupy()
        self._secret = keep_secret(self.folder)
        if lock is None:
            self._ports = ports.read(self.folder)
            return
        try:
            os.ftruncate(lock, 0)  # the pid of a former server
            self._ports = self._ports or self._keep_ports()
            self.prepare()
            self._guard = GuardProcess(self._spec(lock), self._folder.open_log())
        finally:
            os.close(lock)  # the guard has inherited it

    def wait_ready(self) -> None:
        """Return when the server answers; raises `ServerError` where it ends or takes too long."""
        deadline = time.monotonic() + self.start_timeout
        while not (self.ready() and self.running and self._folder.pid()):
            if not self.running:
                if self._guard is not None:
                    raise self._failure("ended while it started")
                self.launch()  # the shared server that ran a moment ago has gone
            if time.monotonic() > deadline:
                raise self._failure(f"did not answer within {self.start_timeout:g} s")
            time.sleep(0.02)

    def _keep_ports(self) -> list[int]:
        try:
            return ports.keep(self.folder, self.ports_needed)
        except ports.NoFreePortError as error:
            raise ServerError(f"{type(self).__name__} cannot start: {error}") from None

    def _spec(self, lock: int) -> guard.Spec:
        temporary = self._folder.temporary
        return {
            "command": self.command(),
            "env": self.environment(),
            "folder": str(self.folder),
            "lock": lock,
            "users": str(self.folder / "users.lock") if self._shared else None,
            "signal": self.discard_signal if temporary else self.stop_signal,
            "grace": self.grace,
            "remove": [*self.leftovers(), *([str(self.folder)] if temporary else [])],
        }

    def _end_guard(self, *, keep: bool) -> None:
        if self._guard is not None:
            self._guard.end(keep=keep)
        self._guard = None

    def _occupy(self) -> int | None:
        """The lock of the folder; None when the server is shared and somebody runs it."""
        lock = self._folder.occupy()
        if lock is not None or self._shared:
            return lock
        # The guard of an owner that has just died may still be about to stop the former server.
        _wait(lambda: not self.running, 2 * self.grace)  # it may have to kill what does not stop
        lock = self._folder.occupy()
        if lock is None:
            raise ServerError(
                f"{self.folder} is in use by another server: wait for it, or take another folder"
            )
        return lock

    def _pid(self) -> int:
        if not self.running:
            raise ServerError(f"{type(self).__name__} is not running")
        _wait(lambda: self._folder.pid() is not None or not self.running, self.grace)
        return self._started(self._folder.pid())

    def _wait_ended(self) -> bool:
        return _wait(lambda: not self.running, self.grace)

    def _failure(self, what: str) -> ServerError:
        lines = [f"{type(self).__name__} in {self.folder} {what}:", *self._folder.log_tail()]
        return ServerError("\n".join(lines))

    def _started(self, value: T | None) -> T:
        if not value:
            raise ServerError(f"{type(self).__name__} has not been started")
        return value


def _wait(condition: Callable[[], bool], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def answers(port: int, question: bytes, expected: bytes, timeout: float = 1.0) -> bool:
    """Whether the server's answer to `question` contains `expected`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.sendall(question)
            received = b""
            while expected not in received:
                block = connection.recv(4096)
                if not block:
                    return False
                received += block
    except OSError:
        return False
    return True


def http_get(port: int, path: str, timeout: float = 1.0) -> tuple[int, bytes] | None:
    """Status and body, or None while nobody answers in HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()

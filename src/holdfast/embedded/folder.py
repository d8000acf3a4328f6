"""The folder of a server: all that it keeps, and the locks that tell who is there.

`server.lock` is held by the guard as long as the server runs, and contains the server's pid once it has one.
`users.lock` is shared by the users of a shared server; `start.lock` lets them start it one at a time.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.embedded import locks, private

LONG_LOG = 16 << 20


class Folder:
    """The given folder, or a temporary one that exists from `make` to `discard`."""

    def __init__(self, given: str | os.PathLike[str] | None) -> None:
        self.temporary = given is None
        self.path = None if given is None else Path(given).resolve()
        self._users: int | None = None
        self._log_start = 0

    def make(self) -> Path:
        if self.path is None:
            self.path = Path(tempfile.mkdtemp(prefix="holdfast-")).resolve()
        return private.folder(self.path)

    def discard(self) -> None:
        """Remove a temporary folder."""
        if self.temporary and self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path = None

    @property
    def occupied(self) -> bool:
        """Whether a server runs here."""
        return self.path is not None and locks.is_held(self.path / "server.lock")

    def occupy(self) -> int | None:
        """The lock of a running server, or None when one runs already."""
        return locks.try_exclusive(self.make() / "server.lock")

    def pid(self) -> int | None:
        """The pid of the server that runs here, or None when it has just been launched."""
        text = (self.make() / "server.lock").read_text()
        return int(text) if text else None

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Become a user of the shared server here. Counted first, so that it is not stopped meanwhile."""
        path = self.make()
        if self._users is None:
            self._users = locks.share(path / "users.lock")
        with locks.exclusive(path / "start.lock"):
            yield

    def leave(self) -> None:
        """Be no user of the shared server any more."""
        if self._users is not None:
            os.close(self._users)
            self._users = None

    def open_log(self) -> Path:
        """The server's log, from whose present end on `log_tail` reads; a long one is put aside first."""
        path = self.make() / "server.log"
        path.touch(0o600)
        if path.stat().st_size > LONG_LOG:
            path.replace(path.with_name("server.log.old"))
            path.touch(0o600)
        self._log_start = path.stat().st_size
        return path

    def log_tail(self, lines: int = 20) -> list[str]:
        with (self.make() / "server.log").open(errors="replace") as log:
            log.seek(self._log_start)
            return log.read().splitlines()[-lines:]

"""Files of a server: private to their owner, with locks that the kernel releases when their holder dies.

The locks are flock(2) locks: they belong to the open file, so that a lock passes to a child process with the
descriptor, and two openings of one file in one process exclude each other like two processes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONG_LOG = 16 << 20
# Root's PostgreSQL runs as another user. On Linux it keeps a capability that opens the way to its data.
MODE = 0o700 if sys.platform == "linux" or os.geteuid() != 0 else 0o711


def private_folder(path: Path) -> Path:
    """The folder, which others can neither list nor enter, whatever the umask; one from before is closed.

    Raises PermissionError where it is another user's.
    """
    path.mkdir(mode=MODE, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o777 & ~MODE:
        path.chmod(MODE)
    return path


def write_private(path: Path, text: str) -> None:
    """Write the file whole or not at all; it is durable when this returns."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def keep_secret(folder: Path) -> str:
    """The folder's random password, made when there is none yet."""
    path = folder / "secret"
    if not path.exists():
        write_private(path, secrets.token_hex(16))
    return path.read_text()


def _lock(path: Path, kind: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock_shared(path: Path) -> int:
    """Wait until nobody holds it exclusively, and hold it with the others; returns its descriptor."""
    return _lock(path, fcntl.LOCK_SH)


def try_lock(path: Path) -> int | None:
    """Hold it alone, or None when somebody else has it."""
    try:
        return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for it, and hold it alone for the length of a block."""
    descriptor = _lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether somebody holds it exclusively. Asking shares it for an instant."""
    try:
        os.close(_lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


class ServerFolder:
    """The folder of a server: the given one, or a temporary one that exists from `make` to `discard`.

    `server.lock` is held by the guard as long as the server runs, and contains the server's pid once there is
    one. `users.lock` is shared by the users of a shared server. `start.lock` is held by who starts it.
    """

    def __init__(self, given: str | os.PathLike[str] | None) -> None:
        self.temporary = given is None
        self.path = None if given is None else Path(given).resolve()
        self._users: int | None = None
        self._log_start = 0

    def make(self) -> Path:
        """Create the folder where it is missing; returns its path."""
        if self.path is None:
            self.path = Path(tempfile.mkdtemp(prefix="holdfast-")).resolve()
        return private_folder(self.path)

    def discard(self) -> None:
        """Remove a temporary folder."""
        if self.temporary and self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path = None

    @property
    def occupied(self) -> bool:
        """Whether a server runs here."""
        return self.path is not None and is_locked(self.path / "server.lock")

    def occupy(self) -> int | None:
        """The lock of a running server, or None when one runs already."""
        return try_lock(self.make() / "server.lock")

    def pid(self) -> int | None:
        """The pid of the server that runs here, or None when it has just been launched."""
        text = (self.make() / "server.lock").read_text()
        return int(text) if text else None

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Become a user of the shared server here. Counted first, so that it is not stopped meanwhile."""
        path = self.make()
        if self._users is None:
            self._users = lock_shared(path / "users.lock")
        with locked(path / "start.lock"):
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
        """The last lines that the server has written since `open_log`."""
        with (self.make() / "server.log").open(errors="replace") as log:
            log.seek(self._log_start)
            return log.read().splitlines()[-lines:]

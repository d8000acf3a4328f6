"""A folder as an object store: a name appears by a link to a synced file, and nothing is written over.

Files being written are in `.drafts`, on the same file system. A link fails where the name exists, which is
what a rename does not. Only `swap` replaces a file, under a lock on the folder. The first write makes the
folder: to look at one that is not there changes nothing. What is put into it gets its permissions, whatever
the umask: whoever may read the folder may read that too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from holdfast.model.errors import NotFound, ObjectConflict, Unavailable
from holdfast.pipeline.stores.store import Entry, Tagged, check_key, content_tag

_DRAFTS, _LOCK = ".drafts", ".swap.lock"
_STALE = 24 * 3600.0


class FolderStore:
    """Objects are files under `root`, open to whomever the folder is open to."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().resolve()
        self.url = f"file://{self._root}"
        self._writes = False

    def put(self, name: str, data: bytes) -> bool:
        target = self._path(name)
        with _translated(name):
            if not target.exists() and self._link(target, data):
                return True
            if target.read_bytes() != data:
                raise ObjectConflict(f"{target} exists with other content; it was left as it is")
            _sync_folder(target.parent)  # whoever linked it may have died before this
            return False

    def swap(self, name: str, tag: str, data: bytes) -> bool:
        target = self._path(name)
        if self.size(name) is None:
            return False
        with _translated(name), self._exclusive():
            if not target.exists() or content_tag(target.read_bytes()) not in (tag, content_tag(data)):
                return False
            os.replace(self._draft(data), target)
            _sync_folder(target.parent)
            return True

    def get(self, name: str) -> bytes:
        with _translated(name):
            return self._path(name).read_bytes()

    def parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with _translated(name), self._path(name).open("rb", buffering=0) as file:
            return [os.pread(file.fileno(), end - start, start) for start, end in ranges]

    def reader(self, name: str) -> BinaryIO:
        with _translated(name):
            return self._path(name).open("rb")

    def tagged(self, name: str) -> Tagged:
        data = self.get(name)
        return Tagged(data, content_tag(data))

    def size(self, name: str) -> int | None:
        with _translated(name), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return self._path(name).stat().st_size
        return None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        top = self._path(prefix.rstrip("/")) if prefix else self._root
        with _translated(prefix):
            walked = os.walk(top, onerror=_unless_missing)
            found = [Path(folder) / file for folder, _, files in walked for file in files]
            names = sorted(str(path.relative_to(self._root)) for path in found)
        for name in names:
            if not name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    yield Entry(name, (self._root / name).stat().st_size)

    def delete(self, name: str) -> None:
        target = self._path(name)
        with _translated(name), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            target.unlink()
            _sync_folder(target.parent)

    def _path(self, name: str) -> Path:
        return self._root / check_key(name)

    def _link(self, target: Path, data: bytes) -> bool:
        self._make(target.parent)
        draft = self._draft(data)
        try:
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        _sync_folder(target.parent)
        return True

    def _draft(self, data: bytes) -> Path:
        """A synced file without a name that anybody looks for."""
        if not self._writes:
            self._make(self._root / _DRAFTS)
            self._remove_stale_drafts()
            self._writes = True
        path = self._root / _DRAFTS / secrets.token_hex(12)
        try:
            with path.open("xb") as file:
                os.fchmod(file.fileno(), self._mode & 0o666)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # on a full disk, what did not fit must not take what room there is
            path.unlink(missing_ok=True)
            raise
        return path

    def _make(self, folder: Path) -> None:
        """Make a folder and the ones above it, each durable in its parent."""
        if folder.is_dir():
            return
        self._make(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            if self._root in folder.parents:
                folder.chmod(self._mode)
        _sync_folder(folder.parent)

    @property
    def _mode(self) -> int:
        return stat.S_IMODE(self._root.stat().st_mode)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        with (self._root / _LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _remove_stale_drafts(self) -> None:
        """What writers that were killed have left, a day ago or earlier."""
        for draft in (self._root / _DRAFTS).iterdir():
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - _STALE:
                    draft.unlink()


def _unless_missing(error: OSError) -> None:
    """A folder that cannot be read must not look empty; one that is not there is."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """The operating system's errors as ours."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"there is no object {what!r}") from None
    except OSError as error:
        raise Unavailable(f"{what!r}: {error.strerror or error}; nothing was changed") from error

"""The disk: a file system of its own, whose power can be cut and which can be full.

It is ext4 in an image file behind a loop device. A cut is the one of the file system itself: from that moment
on nothing more reaches the image, so that whatever nobody has synced is gone, as with a real machine, and the
next mount replays the journal. Its own periodic flush is put off, since it would save what was not synced;
the kernel still writes back by itself what is older than half a minute.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Self

_MEMORY = "/dev/shm"  # noqa: S108 - the folder in it is private
_TOOLS = ("mkfs.ext4", "mount", "umount", "cp")
_OPTIONS = "loop,noatime,data=ordered,commit=3600"
_BALLAST, _STEP = ".ballast", 64 << 20
# From linux/ext4.h: stop at once, and do not even write the journal.
_SHUTDOWN, _NO_FLUSH = 0x8004587D, struct.pack("I", 2)
# It outlives us, also when we are killed: its input ends with us or with a line, and then it tidies up.
_KEEPER = 'read _; umount --lazy "$1/mount" 2> /dev/null; rm -r "$1"'


class DiskError(RuntimeError):
    """A disk could not be made, mounted, or let go of."""


class Disk:
    """Mounted at `path` inside of a `with` block, and gone after it; also when the process is killed."""

    def __init__(self, size: int = 256 << 20) -> None:
        self._size = size
        self._folder = Path()
        self._keeper: subprocess.Popen[bytes] | None = None

    @staticmethod
    @cache
    def missing() -> str | None:
        """Why there can be no disk here; None where there can be one."""
        if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            return f"there is no {', '.join(absent)}"
        try:
            with Disk(8 << 20) as disk:
                disk.cut()
        except (DiskError, OSError) as error:
            return str(error)
        return None

    @property
    def path(self) -> Path:
        """Where everything on this disk is."""
        return self._folder / "mount"

    def __enter__(self) -> Self:
        # In memory where there is room: only what reaches the image counts, not what reaches a real disk.
        roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 * self._size
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-disk-", dir=_MEMORY if roomy else None))
        self.path.mkdir()
        self._keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "keeper", str(self._folder)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            with (self._folder / "image").open("wb") as image:
                image.truncate(self._size)
            _run("mkfs.ext4", "-q", "-m", "0", self._folder / "image")
            self._mount()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.communicate(b"\n")  # not by the end alone: a forked process may have our end too
            self._keeper = None

    def cut(self) -> None:
        """The power fails and comes back. Kill the processes that work here first: their files are dead."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _NO_FLUSH)
        finally:
            os.close(descriptor)
        # Whoever still holds a file keeps the former disk's device busy: so a copy of its image goes on.
        image, copy = self._folder / "image", self._folder / "copy"
        _run("cp", "--sparse=always", "--reflink=auto", image, copy)
        _run("umount", "--lazy", self.path)
        copy.rename(image)
        self._mount()

    def fill(self) -> None:
        """Leave no room: every write fails with ENOSPC."""
        ballast, step = os.open(self.path / _BALLAST, os.O_WRONLY | os.O_CREAT, 0o600), _STEP
        try:
            while step:
                try:
                    os.posix_fallocate(ballast, os.fstat(ballast).st_size, step)
                except OSError:
                    step //= 4
        finally:
            os.close(ballast)

    def free(self) -> None:
        """There is room again. Nothing happens where there was."""
        (self.path / _BALLAST).unlink(missing_ok=True)

    def _mount(self) -> None:
        _run("mount", "-t", "ext4", "-o", _OPTIONS, self._folder / "image", self.path)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise DiskError(f"{command[0]} failed: {done.stderr.strip() or f'it ended with {done.returncode}'}")

"""File locks that the kernel lets go of when their holder dies, however it dies.

They are flock(2) locks: they belong to the open file, so that a lock passes to a child process with the
descriptor, and two openings of one file in one process exclude each other like two processes.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _take(path: Path, kind: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def share(path: Path) -> int:
    """Wait until nobody holds it exclusively, and hold it with the others. Close the descriptor to let go."""
    return _take(path, fcntl.LOCK_SH)


def try_exclusive(path: Path) -> int | None:
    """Hold it alone, or None when somebody else has it."""
    try:
        return _take(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    descriptor = _take(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether somebody holds it exclusively. Asking shares it for an instant."""
    try:
        os.close(_take(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False

"""Private files: only their owner can read them."""

import os
import secrets
import sys
from pathlib import Path

# Root's PostgreSQL runs as another user. On Linux it keeps a capability that opens the way to its data.
MODE = 0o700 if sys.platform == "linux" or os.geteuid() != 0 else 0o711


def folder(path: Path) -> Path:
    """The folder, which others can neither list nor enter, whatever the umask; one from before is closed.

    Raises PermissionError where it is another user's.
    """
    path.mkdir(mode=MODE, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o777 & ~MODE:
        path.chmod(MODE)
    return path


def write(path: Path, text: str) -> None:
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
        write(path, secrets.token_hex(16))
    return path.read_text()

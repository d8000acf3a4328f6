"""The guard starts one server and outlives the server's owner, to stop it and to clean up after it.

It runs as a script of its own, apart from the package, so that it is up in some 30 ms. Its standard input
carries one line of JSON, a `Spec`, and then stays open while the owner lives: the kernel closes it even when
the owner dies by SIGKILL. The word "keep" before the end means that nothing is to be removed.

A shared server (`users` is set) has no single owner: the guard leaves its parent, and stops the server when
nobody holds the lock on the file `users` any more. It keeps that lock until the server has gone, so that
a user who comes meanwhile waits, and then finds no half-stopped server.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypedDict


class Spec(TypedDict):
    command: list[str]
    env: dict[str, str]
    folder: str
    lock: int  # inherited descriptor: locked as long as the server runs, and its file holds the server's pid
    users: str | None
    signal: int
    grace: float
    remove: list[str]


def processes() -> Iterator[tuple[int, int, bool]]:
    """Every process: its pid, its parent's, and whether it is alive (a zombie is not)."""
    if not os.path.isdir("/proc/self"):
        for line in subprocess.check_output(["ps", "-A", "-o", "pid=,ppid=,stat="], text=True).splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), not state.startswith("Z")
        return
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            # The program's name stands in parentheses and may itself contain blanks and parentheses.
            state, parent, *_ = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            yield int(name), int(parent), state not in "ZX"


def tree(root: int) -> set[int]:
    """The living processes below `root`, and itself."""
    rows = list(processes())
    found = {root}
    while more := {pid for pid, parent, alive in rows if parent in found and alive} - found:
        found |= more
    return found


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze(root: int) -> set[int]:
    """Stop a whole tree. A process group would not do: each PostgreSQL backend makes its own."""
    frozen: set[int] = set()
    while more := tree(root) - frozen:  # a process may have had a child before it was stopped
        send(more, signal.SIGSTOP)
        frozen |= more
    return frozen


def kill_tree(root: int, patience: float = 10.0) -> None:
    """Kill a whole tree at one moment, and wait until it has let go of its memory, files and ports."""
    doomed = freeze(root)
    send(doomed, signal.SIGKILL)
    deadline = time.monotonic() + patience
    while any(pid in doomed for pid, _, alive in processes() if alive) and time.monotonic() < deadline:
        time.sleep(0.01)


def launch(spec: Spec) -> "subprocess.Popen[bytes]":
    server = subprocess.Popen(
        spec["command"],
        env=os.environ | spec["env"],
        cwd=spec["folder"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.pwrite(spec["lock"], f"{server.pid}\n".encode(), 0)
    return server


def reap(server: "subprocess.Popen[bytes]", spec: Spec) -> None:
    server.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)  # what a server that crashed left behind
    os.close(spec["lock"])
    if spec["users"]:
        os._exit(0)  # the main thread still waits for the users; they start the server anew


def end(pid: int, reaper: threading.Thread, spec: Spec) -> None:
    if reaper.is_alive() and spec["signal"] != signal.SIGKILL:
        send({pid}, spec["signal"])
        send(tree(pid), signal.SIGCONT)
        reaper.join(spec["grace"])
    if reaper.is_alive():
        kill_tree(pid)
    reaper.join()


def clean(paths: list[str]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            os.unlink(path)


def guard(spec: Spec) -> None:
    """Start the server; when its owner or its last user has gone, stop it and remove what is to go."""
    server = launch(spec)
    reaper = threading.Thread(target=reap, args=(server, spec), daemon=True)
    reaper.start()
    keep = False
    try:
        keep = sys.stdin.read() == "keep"
        if spec["users"]:
            fcntl.flock(os.open(spec["users"], os.O_RDWR), fcntl.LOCK_EX)
    finally:
        end(server.pid, reaper, spec)
        if not keep:
            clean(spec["remove"])


def main() -> None:
    os.umask(0o077)  # what a server writes is its user's alone
    # Raised as SystemExit, so that a guard that is told to go takes its server along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    spec: Spec = json.loads(sys.stdin.readline())
    if spec["users"] and os.fork():
        os._exit(0)
    guard(spec)


if __name__ == "__main__":
    main()

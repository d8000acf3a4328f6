"""The database cluster of a PostgreSQL server: made once, then served.

It runs as a script of its own, in the server's folder: `cluster.py PROGRAM-FOLDER SERVER-ARGUMENT...`.
PostgreSQL refuses to run as root, so root's server runs as `nobody`, who owns the data.
"""

import ctypes
import os
import pwd
import shutil
import subprocess
import sys

USER = "holdfast"
INITDB = [
    f"--username={USER}",
    "--pwfile=data.password",
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--pgdata=data.new",
]

# From linux/prctl.h and linux/capability.h.
PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 47, 2
CAPABILITY_VERSION_3, CAP_DAC_OVERRIDE = 0x20080522, 1


def call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


def reachable(paths: list[str], uid: int) -> bool:
    """Whether that user can get to all of the paths. Only root can ask."""
    os.seteuid(uid)
    try:
        return all(os.access(path, os.X_OK, effective_ids=True) for path in paths)
    finally:
        os.seteuid(0)


def keep_override() -> None:
    """Let the programs that follow pass folders that are closed to their user, as root could.

    A home of root is closed to others, and so is the server's own folder. Opening them would be a lasting
    change to somebody's machine; this capability ends with the process.
    """
    mask = 1 << CAP_DAC_OVERRIDE
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    call("capset", header, (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0))
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)


def leave_root(programs: str) -> None:
    """Become `nobody`, if we are root."""
    if os.geteuid() != 0:
        return
    nobody = pwd.getpwnam("nobody")
    closed = sys.platform == "linux" and not reachable([os.getcwd(), f"{programs}/postgres"], nobody.pw_uid)
    if closed:
        call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
    if closed:
        keep_override()


def give_to_nobody(*paths: str) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in paths:
            os.chown(path, nobody.pw_uid, nobody.pw_gid)


def make(programs: str) -> None:
    """A cluster gets its name last, so that one that was half made is never taken for a whole one."""
    shutil.rmtree("data.new", ignore_errors=True)
    os.mkdir("data.new", 0o700)
    shutil.copy("secret", "data.password")  # with its permissions
    give_to_nobody("data.new", "data.password")
    subprocess.run([f"{programs}/initdb", *INITDB], check=True, preexec_fn=lambda: leave_root(programs))
    os.unlink("data.password")
    os.rename("data.new", "data")
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def main(programs: str, *arguments: str) -> None:
    if not os.path.isdir("data"):
        make(programs)
    leave_root(programs)
    program = f"{programs}/postgres"  # it finds its libraries by this path
    os.execv(program, [program, "-D", "data", *arguments])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])

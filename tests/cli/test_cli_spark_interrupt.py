"""Ctrl-C while a command waits for Spark."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)

# Java sleeps in a call of the main thread, which "waits" says once it does.
COMMAND = """
import sys, threading, time
from holdfast.cli.spark import session

def tell(main):
    while sys._current_frames()[main].f_code.co_name != "readinto":
        time.sleep(0.05)
    print("waits", flush=True)

try:
    with session("local[1]", name="test") as spark:
        threading.Thread(target=tell, args=[threading.get_ident()], daemon=True).start()
        spark.sparkContext._jvm.java.lang.Thread.sleep(60_000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_command_without_tracebacks() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    out, said = process.communicate()
    assert (process.returncode, out, said) == (0, "interrupted\n", "")


UNANSWERED = """
import sys
from holdfast.cli.spark import session

try:
    with session(sys.argv[1], name="test"):
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_does_not_wait_for_a_master_that_does_not_answer() -> None:
    """Spark gives up after a minute. Java ends with the command: its connection does."""
    with socket.create_server(("127.0.0.1", 0)) as master:
        command = [sys.executable, "-c", UNANSWERED, f"spark://127.0.0.1:{master.getsockname()[1]}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes, text=True) as process, master.accept()[0] as asks:
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=45)
            assert (process.returncode, out) == (0, "interrupted\n")
            while asks.recv(65536):
                pass

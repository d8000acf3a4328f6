"""Ctrl-C while a command waits for Spark."""

from __future__ import annotations

import signal
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

"""The leash: the owner's end of a guard. When the owner dies, the kernel lets it go."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from holdfast.embedded import guard


class Leash:
    def __init__(self, spec: guard.Spec, log: Path) -> None:
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[spec["lock"]],
                start_new_session=True,
            )
        self._tell(json.dumps(spec).encode() + b"\n")
        if spec["users"]:
            self.let_go()  # the guard of a shared server looks at its users instead

    def let_go(self, *, keep: bool = False) -> None:
        """Have the server stopped and its traces removed, unless they are to be kept. Waits for it."""
        if keep:
            self._tell(b"keep")
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()

    def _tell(self, text: bytes) -> None:
        with suppress(BrokenPipeError):  # a guard that has died says so in the log
            if self._guard.stdin is not None and not self._guard.stdin.closed:
                self._guard.stdin.write(text)
                self._guard.stdin.flush()

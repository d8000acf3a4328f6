"""A shell's view of a command."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.cli import main


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]
Start = Callable[..., "subprocess.Popen[str]"]


def call(arguments: tuple[str, ...]) -> Answer:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return Answer(int(ended.value.code or 0), out.getvalue(), err.getvalue())

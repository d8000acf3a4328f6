"""The screen: a line for each step that is over, and a bar for what goes on."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from holdfast.cli.demo.stage import Stage
from holdfast.cli.output import stderr
from holdfast.model.errors import HoldfastError

_EVERY = 0.25


class Screen:
    """Speaks on stderr; the bar is for terminals only."""

    def __init__(self, steps: int) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn()
        self._progress = Progress(
            *columns, TimeElapsedColumn(), console=stderr(), transient=True, disable=not sys.stderr.isatty()
        )
        self._task = self._progress.add_task("start", total=None)
        self._steps, self._step = steps, 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, name: str) -> None:
        """A step starts."""
        self._step += 1
        self._progress.update(self._task, description=name)

    def shown(self, name: str, line: str) -> None:
        """A step is over."""
        place = Text(f"{self._step:>2}/{self._steps}  ", style="dim")
        stderr().print(
            place, Text(f"{name:<9} ", style="bold"), Text(line), sep="", soft_wrap=not stderr().is_terminal
        )

    async def follow(self, stage: Stage) -> None:
        """Keep the bar up to date until cancelled."""
        while True:
            total = len(stage.record.acknowledged)
            if total:
                try:
                    self._progress.update(self._task, total=total, completed=total - await stage.live())
                except HoldfastError:
                    return  # the step that runs says it better
            await asyncio.sleep(_EVERY)

"""The operations part: does what was asked for, and goes on where another process died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from prometheus_client.core import Metric

from holdfast.deadletters.runner import Runner
from holdfast.model.errors import HoldfastError

log = logging.getLogger(__name__)

EVERY = 1.0


class OperationsPart:
    """Runs operations, a few at once."""

    name = "operations"

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._trouble = ""

    async def run(self) -> None:
        """Look for something to do until cancelled. What is cut off is resumed by whoever looks next."""
        while True:
            try:
                await self._runner.serve()
            except HoldfastError as error:
                log.warning("operations cannot be read: %s", error)
                self._trouble = f"waits for the store: {error}"
            await asyncio.sleep(EVERY)
            self._trouble = ""

    def status(self) -> str:
        """How many it runs."""
        running = self._runner.running
        return self._trouble or (f"{running} under way" if running else "nothing to do")

    def metrics(self) -> Iterator[Metric]:
        """Nothing of its own."""
        yield from ()

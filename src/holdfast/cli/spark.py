"""Spark for a command: its session, whose Java writes to a log, and the signal that stops a driver."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.cli.logs import LONG
from holdfast.cli.output import say
from holdfast.model.errors import HoldfastError
from holdfast.wiring import home

log = logging.getLogger(__name__)
_TAIL = 20
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def session(
    master: str, *, name: str, log: Path | None = None, plans: bool = False
) -> Iterator[Any]:  # Spark's own type is for the pipeline alone
    """A session for the length of a block. At a terminal Java and the executors on this machine write into
    `log`, by default `.holdfast/logs/spark.log`; elsewhere to stderr, as services want it. Where Spark fails,
    the last lines of the log are shown and `HoldfastError` is raised. `plans`: see there."""
    from holdfast.pipeline import session as pipeline

    file = log or (home() / "logs" / "spark.log" if sys.stderr.isatty() else None)
    if file is not None:
        _rotate(file)
    start = file.stat().st_size if file is not None and file.exists() else 0
    before = signal.getsignal(signal.SIGINT)
    try:
        with _quiet_py4j(), pipeline.session(master, name=name, log=file, plans=plans) as spark:
            # Spark's own handler asks Java to cancel, in the middle of whatever it was asked: that cannot be.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, before)
            yield spark
    except Exception as error:
        if file is None or not _is_spark_error(error):
            raise
        for line in _tail(file, start):
            say(f"  {line}")
        say(f"these are the last lines of {file}")
        if isinstance(error, HoldfastError):
            raise
        raise HoldfastError(f"Spark failed: {str(error).strip().partition(chr(10))[0]}") from error


@contextmanager
def _quiet_py4j() -> Iterator[None]:
    """What fails or is interrupted is said once, by the command: py4j writes a traceback of each, some
    of them with the root logger."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    root.addFilter(_is_not_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _is_spark_error(error: BaseException | None) -> bool:
    """Whether an error is Spark's, or comes from one."""
    while error is not None:
        if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _rotate(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > LONG:
        file.replace(file.with_name(f"{file.name}.1"))


def _tail(file: Path, start: int) -> list[str]:
    """The last lines that were written since, without the frames of Java's stacks."""
    with file.open("rb") as said:
        said.seek(max(start, file.stat().st_size - 64_000))
        lines = said.read().decode(errors="replace").splitlines()
    return [line for line in lines if not line.startswith(("\tat ", "\t... "))][-_TAIL:]


@contextmanager
def stop_requested(message: str) -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second one ends the program as it stands."""
    stop = threading.Event()

    def tell(number: int, _: object) -> None:
        log.info("stopping: %s", message)
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = [signal.signal(number, tell) for number in _SIGNALS]
    try:
        yield stop
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
